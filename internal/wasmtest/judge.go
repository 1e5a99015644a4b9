package wasmtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// LoadAll is Load for many modules, in the time of a few: Envoys that run get one module after the other in a listener of theirs, as from a
// control plane, and only one that a module killed is started again. The log is only that of the killed; use Load to see why Envoy refuses one.
func LoadAll(t testing.TB, modules [][]byte) []Loaded {
	t.Helper()
	const judges = 2
	results, failures := make([]Loaded, len(modules)), make([]error, judges)
	var next atomic.Int64
	var group sync.WaitGroup
	for i := range judges {
		j := &judge{envoy: EnvoyPath(t), dir: t.TempDir()}
		group.Go(func() {
			defer j.stop()
			for at := next.Add(1) - 1; at < int64(len(modules)) && failures[i] == nil; at = next.Add(1) - 1 {
				results[at], failures[i] = j.load(t.Context(), modules[at])
			}
		})
	}
	group.Wait()
	if err := errors.Join(failures...); err != nil {
		t.Fatal(err)
	}
	return results
}

// judge is one running Envoy. It is for one goroutine.
type judge struct {
	envoy, dir string
	modules    int
	taken      updates // by the running Envoy
	cancel     context.CancelFunc
	ended      chan struct{}
	exit       error // once ended is closed
	log        bytes.Buffer
}

// updates are the configurations that an Envoy has decided on.
type updates struct{ success, rejected, failure int }

func (u updates) sum() int { return u.success + u.rejected + u.failure }

// errEnded means that Envoy is no more.
var errEnded = errors.New("Envoy ended")

func (j *judge) load(ctx context.Context, module []byte) (Loaded, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("Envoy does not answer; does the module loop?"))
	defer cancel()
	if j.cancel == nil {
		if err := j.start(ctx); err != nil {
			return Loaded{}, err
		}
	}
	j.modules++
	path := filepath.Join(j.dir, fmt.Sprintf("%d.wasm", j.modules))
	if err := os.WriteFile(path, module, 0o600); err != nil {
		return Loaded{}, err
	}
	defer os.Remove(path)
	if err := j.publish(listener("test", HTTP, path, "")); err != nil {
		return Loaded{}, err
	}
	before := j.taken
	err := j.updated(ctx)
	switch {
	case errors.Is(err, errEnded):
		return j.killed()
	case err == nil && j.taken.failure > before.failure:
		err = errors.New("Envoy cannot read its listeners")
	}
	return Loaded{Accepted: j.taken.success > before.success}, err
}

// killed is the end of an Envoy that nobody stopped.
func (j *judge) killed() (Loaded, error) {
	loaded := Loaded{Log: j.log.String()}
	j.stop()
	exit, _ := errors.AsType[*exec.ExitError](j.exit)
	if exit == nil {
		return loaded, fmt.Errorf("Envoy ended: %w\n%s", j.exit, loaded.Log)
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	loaded.Killed = ok && status.Signaled()
	return loaded, nil
}

func (j *judge) start(ctx context.Context) error {
	if err := j.publish(); err != nil {
		return err
	}
	config, err := json.Marshal(object{
		"admin": object{"address": loopback()},
		"dynamic_resources": object{"lds_config": object{
			"resource_api_version": "V3", "path_config_source": object{"path": filepath.Join(j.dir, "lds.json")},
		}},
	})
	if err != nil {
		return err
	}
	admin := filepath.Join(j.dir, "admin")
	_ = os.Remove(admin)
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	j.log.Reset()
	cmd := exec.CommandContext(run, j.envoy, "--concurrency", "1", "--use-dynamic-base-id", "-l", "error", "--service-node", "test",
		"--service-cluster", "test", "--drain-time-s", "1", "--admin-address-path", admin, "--config-yaml", string(config))
	cmd.Stdout, cmd.Stderr = &j.log, &j.log
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		cancel()
		return err
	}
	ended := make(chan struct{})
	go func() { j.exit = cmd.Wait(); close(ended) }()
	j.cancel, j.ended, j.taken = cancel, ended, updates{}
	return j.updated(ctx)
}

func (j *judge) stop() {
	if j.cancel != nil {
		j.cancel()
		<-j.ended
		j.cancel = nil
	}
}

// publish writes the listeners as a control plane that only has files does.
func (j *judge) publish(listeners ...object) error {
	resources := []any{}
	for _, l := range listeners {
		l["@type"] = "type.googleapis.com/envoy.config.listener.v3.Listener"
		resources = append(resources, l)
	}
	b, err := json.Marshal(object{"version_info": strconv.Itoa(j.modules), "resources": resources})
	if err != nil {
		return err
	}
	path := filepath.Join(j.dir, "lds.json")
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// updated waits until Envoy has decided on what was published.
func (j *judge) updated(ctx context.Context) error {
	for {
		admin, _ := os.ReadFile(filepath.Join(j.dir, "admin"))
		stats := get(ctx, "http://"+string(admin)+"/stats?filter=^listener_manager.lds.update_(success|rejected|failure)$")
		now := updates{stat(stats, "update_success"), stat(stats, "update_rejected"), stat(stats, "update_failure")}
		if now.sum() > j.taken.sum() {
			j.taken = now
			return nil
		}
		select {
		case <-j.ended:
			return errEnded
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func stat(stats, name string) int {
	_, value, _ := strings.Cut(stats, "listener_manager.lds."+name+": ")
	value, _, _ = strings.Cut(value, "\n")
	n, _ := strconv.Atoi(value) // none before Envoy has any
	return n
}
