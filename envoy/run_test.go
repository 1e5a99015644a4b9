package envoy

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

func TestStartAndStop(t *testing.T) {
	rig := newRig(t, hello())
	r := rig.run(t, func(c *Config) { c.Version = "1.40.0" })
	st := r.awaitState(StateLive)
	if st.PID == 0 || st.Epoch != 0 || st.Restarts != 0 || st.StartedAt.IsZero() || st.LiveAt.Before(st.StartedAt) || st.Version != "1.40.0" {
		t.Errorf("Status of a live Envoy = %+v", st)
	}
	if !serving(rig.web) {
		t.Error("a live Envoy does not serve")
	}
	if m := metrics(t, r.Supervisor); m["gateway_agent_envoy_up"] != 1 || m["gateway_agent_envoy_start_time_seconds"] < 1e9 {
		t.Errorf("metrics of a live Envoy = %v", m)
	}
	began := time.Now()
	r.stop()
	if err := r.await(5 * time.Second); err != nil {
		t.Errorf("Run, asked to stop = %v, want nil", err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("stopping an idle Envoy took %v, want less than a second", took)
	}
	if gone(st.PID) != nil {
		t.Errorf("envoy %d still runs after Run", st.PID)
	}
	if st := r.Status(); st.State != StateStopped || st.PID != 0 {
		t.Errorf("Status after Run = %+v", st)
	}
	if m := metrics(t, r.Supervisor); m["gateway_agent_envoy_up"] != 0 {
		t.Errorf("metrics after Run = %v", m)
	}
}

func TestKilledThreeTimes(t *testing.T) {
	rig := newRig(t, hello())
	r := rig.run(t, nil)
	r.awaitState(StateLive)
	for n := 1; n <= 3; n++ {
		old := r.Status().PID
		began := time.Now()
		if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, 2*time.Second, "serving again", func() bool { return r.Status().PID != old && serving(rig.web) })
		t.Logf("kill %d: serving again after %v", n, time.Since(began))
		st := r.awaitState(StateLive)
		if st.Epoch != n || st.Restarts != n || st.LastExit == nil || st.LastExit.PID != old || !st.LastExit.Live ||
			!strings.Contains(st.LastExit.String(), "SIGKILL, not by the agent") {
			t.Errorf("Status after kill %d = %+v, last exit %v", n, st, st.LastExit)
		}
	}
	if m := metrics(t, r.Supervisor); m["gateway_agent_envoy_restarts_total{killed}"] != 3 || m["gateway_agent_envoy_restarts_total{exit}"] != 0 {
		t.Errorf("metrics after three kills = %v", m)
	}
}

func TestCrashReport(t *testing.T) {
	rig := newRig(t, hello())
	r := rig.run(t, func(c *Config) { c.Restarts = -1 })
	st := r.awaitState(StateLive)
	if err := syscall.Kill(st.PID, syscall.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	err := r.await(5 * time.Second)
	for _, want := range []string{"signal segmentation fault", "Caught Segmentation fault"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run after SIGSEGV = %v; want it to say %q", err, want)
		}
	}
}

func TestStartCrashLoopEnds(t *testing.T) {
	t.Parallel()
	rig := newRig(t, hello())
	config := rig.config("127.0.0.1:1")
	config["nope"] = "secret"
	rig.write(t, config)
	r := rig.run(t, nil)
	err := r.await(10 * time.Second)
	crash, ok := errors.AsType[*CrashError](err)
	if !ok || crash.Crashes != 6 || crash.Exit.Code != 1 || crash.Exit.Live {
		t.Fatalf("Run with a bad bootstrap = %+v; want a CrashError after 6 crashes with status 1", err)
	}
	for _, want := range []string{"exit status 1", "no such field: 'nope'"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Run with a bad bootstrap = %v; want it to say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "lb_endpoints") {
		t.Errorf("Run with a bad bootstrap prints the whole bootstrap: %v", err)
	}
}

func TestExitZeroIsACrash(t *testing.T) {
	rig := newRig(t, hello())
	r := rig.run(t, func(c *Config) { c.Path = script(t, "echo bye >&2"); c.Restarts = 2 })
	err := r.await(10 * time.Second)
	crash, ok := errors.AsType[*CrashError](err)
	if !ok || crash.Crashes != 3 || !strings.Contains(err.Error(), "exit status 0") || !strings.Contains(err.Error(), "bye") {
		t.Errorf("Run of an Envoy that exits 0 = %v; want a CrashError with its last words", err)
	}
}

func TestNoSuchBinary(t *testing.T) {
	r := run(t, Config{Path: "/nonexistent/envoy", Bootstrap: "b", Admin: "a"})
	if err := r.await(time.Second); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "/nonexistent/envoy") {
		t.Errorf("Run without a binary = %v; want an error that names it", err)
	}
}

func TestBinaryGoneAtRestart(t *testing.T) {
	file := script(t, `rm "$0"; exit 3`)
	r := run(t, Config{Path: file, Bootstrap: "b", Admin: filepath.Join(t.TempDir(), "a"), Restarts: 2})
	err := r.await(5 * time.Second)
	if crash, ok := errors.AsType[*CrashError](err); !ok || crash.Crashes != 3 || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("Run of a binary that vanishes = %v; want a CrashError that says so", err)
	}
}

func TestStopDuringBackoff(t *testing.T) {
	t.Parallel()
	r := run(t, Config{Path: script(t, "exit 3"), Bootstrap: "b", Admin: filepath.Join(t.TempDir(), "a"), Restarts: 1000})
	eventually(t, 10*time.Second, "a long backoff", func() bool {
		st := r.Status()
		return st.State == StateBackoff && time.Until(st.RestartAt) > time.Second
	})
	r.stop()
	if err := r.await(time.Second); err != nil {
		t.Errorf("Run, asked to stop in its backoff = %v, want nil", err)
	}
}

// TestScriptAroundEnvoy: a script that does not exec may be killed without its Envoy noticing.
func TestScriptAroundEnvoy(t *testing.T) {
	rig := newRig(t, hello())
	file := filepath.Join(rig.dir, "pid")
	binary, err := filepath.Abs(envoyBinary)
	if err != nil {
		t.Fatal(err)
	}
	r := rig.run(t, func(c *Config) {
		c.Path = script(t, binary+` "$@" & echo $! > `+file+`; wait`)
	})
	r.awaitState(StateLive)
	inner := pidIn(t, file)
	if err := syscall.Kill(r.Status().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Second, "the end of the script's Envoy", func() bool { return gone(inner) == nil })
	eventually(t, 5*time.Second, "a new one", func() bool { return r.Status().Epoch == 1 && r.Status().State == StateLive })
	inner = pidIn(t, file)
	r.stop()
	if err := r.await(5 * time.Second); err != nil {
		t.Errorf("Run of a script, asked to stop = %v, want nil", err)
	}
	if gone(inner) != nil {
		t.Errorf("envoy %d outlives the script around it", inner)
	}
}

func TestAgentKilled(t *testing.T) {
	rig := newRig(t, hello())
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "ENVOY_TEST_AGENT="+rig.bootstrap, "ENVOY_TEST_ADMIN="+rig.admin)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	line := make([]byte, 20)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	if err != nil {
		t.Fatal(err)
	}
	if !serving(rig.web) {
		t.Fatal("envoy does not serve")
	}
	// Threads of the agent come and go: Envoy must not go with one.
	time.Sleep(200 * time.Millisecond)
	if err := gone(pid); err == nil {
		t.Fatal("envoy ended before the agent")
	}
	began := time.Now()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, time.Second, "Envoy's end after the agent's", func() bool { return gone(pid) == nil })
	t.Logf("envoy gone %v after the agent was killed", time.Since(began))
}

func TestProcessGroupOfItsOwn(t *testing.T) {
	rig := newRig(t, hello())
	pid := rig.run(t, nil).awaitState(StateLive).PID
	if group, err := syscall.Getpgid(pid); err != nil || group != pid {
		t.Errorf("Envoy %d is in process group %d (%v); Ctrl-C in a terminal would reach it", pid, group, err)
	}
}

func TestArguments(t *testing.T) {
	s, err := New(Config{Path: "e", Bootstrap: "b.json", Admin: "a", Concurrency: 3, LogLevel: "debug", Args: []string{"--x"}})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(s.args(), " ")
	for _, want := range []string{"-c b.json", "--concurrency 3", "-l debug", "--drain-time-s 600", "--disable-hot-restart"} {
		if !strings.Contains(got, want) {
			t.Errorf("args() = %s; want %s in it", got, want)
		}
	}
	if !strings.HasSuffix(got, " --x") {
		t.Errorf("args() = %s; want --x last", got)
	}
}

func TestNewRefuses(t *testing.T) {
	good := Config{Path: "e", Bootstrap: "b", Admin: "a"}
	for want, change := range map[string]func(*Config){
		"no binary given":      func(c *Config) { c.Path = "" },
		"no bootstrap file":    func(c *Config) { c.Bootstrap = "" },
		"no admin socket":      func(c *Config) { c.Admin = "" },
		"--run-dir":            func(c *Config) { c.Admin = "/" + strings.Repeat("x", 107) },
		`log level "loud"`:     func(c *Config) { c.LogLevel = "loud" },
		"concurrency -1":       func(c *Config) { c.Concurrency = -1 },
		"duration is negative": func(c *Config) { c.DrainDelay = -1 },
		"--drain-timeout":      func(c *Config) { c.DrainDelay = time.Minute },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v; want an error with %q", err, want)
		}
	}
	if _, err := New(good); err != nil {
		t.Errorf("New(%+v) = %v", good, err)
	}
}

func pidIn(t *testing.T, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// gone is nil when no process pid runs; a zombie that nobody has reaped yet counts as gone.
func gone(pid int) error {
	if fields := procStat("/proc/" + strconv.Itoa(pid)); fields != nil {
		return errors.New("runs in state " + fields[0])
	}
	return nil
}

// groupMembers are the processes of a group that are no zombies.
func groupMembers(t *testing.T, group int) []string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(dir string) bool {
		fields := procStat(dir)
		return fields == nil || fields[2] != strconv.Itoa(group)
	})
}

// procStat is state, parent, group, … of a process, nil when there is none or only a zombie.
func procStat(dir string) []string {
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return nil
	}
	fields := strings.Fields(string(stat)[strings.LastIndex(string(stat), ")")+1:])
	if fields[0] == "Z" || fields[0] == "X" {
		return nil
	}
	return fields
}

// metrics are what c collects: name or name{label} → value.
func metrics(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += "{" + l.GetValue() + "}"
			}
			out[name] = value(m)
		}
	}
	return out
}

func value(m *dto.Metric) float64 { return m.GetGauge().GetValue() + m.GetCounter().GetValue() }
