// Command e2e runs the end-to-end suite and says how many cases ran. A skipped case, or none at all, is a failure.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// event is one line of `go test -json`.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// tally counts the cases: the tests without subtests of their own.
type tally struct {
	passed, failed, skipped int
	output                  map[string][]string // of each test that has not ended
	parents                 map[string]bool
}

func main() {
	// As in the Makefile: what is built alike is compiled once.
	args := []string{"test", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace", "-vet=off", "-json", "-count=1", "-timeout=25m", "-parallel=5", "./e2e/..."}
	args = append(args, os.Args[1:]...)
	cmd := exec.CommandContext(context.Background(), "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	t := &tally{output: map[string][]string{}, parents: map[string]bool{}}
	t.read(out)
	err = cmd.Wait()
	fmt.Printf("e2e: %d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
	if err != nil || t.failed+t.skipped > 0 || t.passed == 0 {
		os.Exit(1)
	}
}

func (t *tally) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Println(lines.Text())
			continue
		}
		t.add(e)
	}
}

func (t *tally) add(e event) {
	switch e.Action {
	case "output", "build-output":
		t.output[e.Test] = append(t.output[e.Test], e.Output)
	case "build-fail":
		t.print("")
	case "pass", "fail", "skip":
		t.end(e)
	}
}

func (t *tally) end(e event) {
	if e.Test == "" {
		if e.Action == "fail" {
			t.print("")
		}
		return
	}
	for i, c := range e.Test {
		if c == '/' {
			t.parents[e.Test[:i]] = true
		}
	}
	if e.Action != "pass" {
		t.print(e.Test)
	}
	if t.parents[e.Test] {
		return
	}
	fmt.Printf("%-4s %6.1fs  %s\n", e.Action, e.Elapsed, e.Test)
	switch e.Action {
	case "pass":
		t.passed++
	case "fail":
		t.failed++
	case "skip":
		t.skipped++
	}
	delete(t.output, e.Test)
}

func (t *tally) print(test string) {
	for _, line := range t.output[test] {
		fmt.Print(line)
	}
	delete(t.output, test)
}
