package wasmcache

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// childFlag as first argument makes the test binary another process that uses a store.
const childFlag = "-store-child"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == childFlag {
		os.Exit(childMain(os.Args[2]))
	}
	os.Exit(m.Run())
}

// childConfig says what the other process does.
type childConfig struct {
	Dir    string
	Agent  bool // it pins, and collects
	Expiry time.Duration
	Quota  int64
	Inline int           // not 0: modules of that size come from nowhere
	Slow   time.Duration // that an inline module takes
	Loop   uint64        // not 0: work at random until killed; the seed
}

// child is another process. It does what it is told, line by line.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

func startChild(t *testing.T, cfg childConfig) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.CommandContext(t.Context(), self, childFlag, string(text))}
	c.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	c.cmd.Stderr = t.Output()
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.stdin, c.lines = stdin, bufio.NewScanner(stdout)
	t.Cleanup(func() { _ = c.cmd.Process.Kill(); _ = c.cmd.Wait() })
	c.wantLine("ready")
	return c
}

func (c *child) line() (string, bool) {
	ok := c.lines.Scan()
	return c.lines.Text(), ok
}

func (c *child) wantLine(want string) {
	c.t.Helper()
	if got, ok := c.line(); !ok || got != want {
		c.t.Fatalf("the other process said %q, want %q", got, want)
	}
}

// send gives an order; do waits for the answer too.
func (c *child) send(order ...string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.stdin, strings.Join(order, " ")); err != nil {
		c.t.Fatal(err)
	}
}

func (c *child) do(order ...string) string {
	c.t.Helper()
	c.send(order...)
	got, ok := c.line()
	if !ok {
		c.t.Fatalf("the other process ended at %q", order)
	}
	return got
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// servant is the other process's side.
type servant struct {
	store *Store
	mu    sync.Mutex
	pins  []string
	out   sync.Mutex
}

func childMain(text string) int {
	var cfg childConfig
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		fmt.Println(err)
		return 2
	}
	v := &servant{}
	config := Config{
		Dir: cfg.Dir, Check: good, Expiry: cfg.Expiry, Quota: cfg.Quota, CollectEvery: 20 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	client := fetch.New(fetch.Config{})
	defer client.Close()
	config.Fetch = client
	if cfg.Inline > 0 {
		config.Fetch = inline{size: cfg.Inline, slow: cfg.Slow}
	}
	if cfg.Agent {
		config.Pins = v.pinned
	}
	var err error
	if v.store, err = Open(config); err != nil {
		fmt.Println(err)
		return 1
	}
	defer v.store.Close()
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	if cfg.Agent && cfg.Loop == 0 {
		wg.Go(func() { _ = v.store.Run(ctx) })
	}
	fmt.Println("ready")
	if cfg.Loop != 0 {
		v.loop(ctx, cfg.Loop)
	}
	return v.serve(ctx)
}

func (v *servant) pinned() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.pins)
}

func (v *servant) say(text string) {
	v.out.Lock()
	defer v.out.Unlock()
	fmt.Println(text)
}

func (v *servant) serve(ctx context.Context) int {
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		order := strings.Fields(orders.Text())
		switch order[0] {
		case "get": // each answered by its digest, in order
			v.say(strings.Join(v.getAll(ctx, order[1:]), " "))
		case "pin":
			v.mu.Lock()
			v.pins = order[1:]
			v.mu.Unlock()
			v.store.publish(ctx)
			v.say("ok")
		case "prune":
			removed, err := v.store.Prune(PruneOptions{All: true})
			v.say(fmt.Sprint(len(removed), " ", err))
		case "quit":
			return 0
		default:
			v.say("what?")
		}
	}
	return 0
}

func (v *servant) getAll(ctx context.Context, urls []string) []string {
	digests := make([]string, len(urls))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i, url := range urls {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			m, err := v.store.Get(ctx, Request{URL: url})
			if digests[i] = m.Digest; err != nil {
				digests[i] = strings.ReplaceAll(err.Error(), " ", "_")
			}
		})
	}
	wg.Wait()
	return digests
}
