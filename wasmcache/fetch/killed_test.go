package fetch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/oci"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("EXPORT_UNTIL_KILLED"); path != "" {
		exportUntilKilled(path)
	}
	os.Exit(m.Run())
}

// generations are what the killed process exports in turn.
var generations = [2][]byte{core("generation 0", 60<<10), core("generation 1", 50<<10)}

func generation(n int) []string {
	return []string{"oci://registry.test/first:v1", "oci://registry.test/second:v1", fmt.Sprintf("https://plugins.test/%d.wasm", n)}
}

func export(path string, n int, module string) error {
	w, err := CreateLayout(path)
	if err != nil {
		return err
	}
	defer w.Close()
	for _, url := range generation(n) {
		if err := w.Pack(context.Background(), url, module, map[string]string{"n": url}); err != nil {
			return err
		}
	}
	return w.Commit()
}

// exportUntilKilled is the other process. It writes a line before it begins.
func exportUntilKilled(path string) {
	fmt.Println("begin")
	for n := len(os.Getenv("EXPORT_FROM")); ; n++ {
		n := n % 2
		if err := export(path, n, filepath.Join(filepath.Dir(path), "modules", fmt.Sprint(n))); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
}

// A process killed at any point of an export leaves one generation, whole, or nothing; the next export removes what it left beside.
func TestExportKilledAtRandomPoints(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i, name := range []string{"layout", "layout.tar"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dice := rand.New(rand.NewPCG(seed, uint64(i)))
			path := filepath.Join(t.TempDir(), name)
			writeModules(t, path)
			start := time.Now()
			if err := export(filepath.Join(filepath.Dir(path), "x-"+name), 0, filepath.Join(filepath.Dir(path), "modules", "0")); err != nil {
				t.Fatal(err)
			}
			long := 2 * time.Since(start) // so that about every second kill is in the second export
			if err := os.RemoveAll(filepath.Join(filepath.Dir(path), "x-"+name)); err != nil {
				t.Fatal(err)
			}
			found := map[string]int{}
			for n := range 40 {
				killExport(t, path, n%2, time.Duration(dice.Int64N(int64(long))))
				found[wholeLayout(t, path)]++
			}
			t.Logf("found: %v", found)
			if err := export(path, 1, filepath.Join(filepath.Dir(path), "modules", "1")); err != nil {
				t.Fatal(err)
			}
			if got := wholeLayout(t, path); got != "generation 1" {
				t.Errorf("after an export there is %s", got)
			}
			wantOnly(t, filepath.Dir(path), "modules", name)
		})
	}
}

func writeModules(t *testing.T, path string) {
	t.Helper()
	dir := filepath.Join(filepath.Dir(path), "modules")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for n, module := range generations {
		writeFile(t, filepath.Join(dir, fmt.Sprint(n)), module)
	}
}

func killExport(t *testing.T, path string, from int, after time.Duration) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), "EXPORT_UNTIL_KILLED="+path, "EXPORT_FROM="+strings.Repeat("x", from))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 200)
	n, err := out.Read(line)
	if err != nil || string(line[:n]) != "begin\n" {
		t.Errorf("the other process says %q, %v", line[:n], err)
	}
	time.Sleep(after) // real: the other process has a real disk
	_ = cmd.Process.Kill()
	if n, _ := out.Read(line); n > 0 {
		t.Errorf("the other process failed: %s", line[:n])
	}
	_ = cmd.Wait()
}

// wholeLayout says what is at path, after checking that every byte of it is right.
func wholeLayout(t *testing.T, path string) string {
	t.Helper()
	l, err := OpenLayout(path, Config{})
	if e, ok := errors.AsType[*oci.Error](err); ok && e.Kind == oci.NotFound && strings.HasSuffix(e.Error(), "no such file or directory") {
		return "nothing"
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n := 0
	if slices.Contains(l.References(), generation(1)[2]) {
		n = 1
	}
	for _, url := range generation(n) {
		got, _, _, err := bring(t.Context(), t, l, Request{URL: url})
		if err != nil || string(got) != string(generations[n]) {
			t.Fatalf("%s of generation %d: %d bytes, %v", url, n, len(got), err)
		}
	}
	return fmt.Sprintf("generation %d", n)
}
