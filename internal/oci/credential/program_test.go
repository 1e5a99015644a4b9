package credential

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// hidden is what no error and no log may hold.
const hidden = "hunter2-very-secret"

// TestMain makes the test binary a helper or a plugin when it is run under such a name.
func TestMain(m *testing.M) {
	name := filepath.Base(os.Args[0])
	helper, isHelper := strings.CutPrefix(name, helperPrefix)
	plugin, isPlugin := strings.CutPrefix(name, "plugin-")
	switch {
	case isHelper:
		os.Exit(actAsHelper(helper))
	case isPlugin:
		os.Exit(actAsPlugin(plugin))
	}
	os.Exit(m.Run())
}

func input() string {
	data, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// called notes a call in the file $CALLS and returns how many there were.
func called(text string) int {
	f, err := os.OpenFile(os.Getenv("CALLS"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0
	}
	defer f.Close()
	fmt.Fprintln(f, text)
	data, err := os.ReadFile(f.Name())
	if err != nil {
		return 0
	}
	return bytes.Count(data, []byte("\n"))
}

// meet connects to the test, which sees when this process ends, says who it is and waits for an answer.
func meet() {
	c, err := net.Dial("unix", os.Getenv("SOCK"))
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(c, filepath.Base(os.Args[0]))
	_, _ = c.Read(make([]byte, 1))
}

func actAsHelper(name string) int {
	server := input()
	n := called(strings.Join(os.Args[1:], " ") + " " + server)
	user, secret := "user", fmt.Sprintf("%s-%d", hidden, n)
	switch name {
	case "token":
		user = tokenUser
	case "none":
		fmt.Println(notFound)
		return 1
	case "fail":
		fmt.Printf("{\"Username\":\"user\",\"Secret\":%q}\n", secret)
		fmt.Fprintf(os.Stderr, "trace\nAccessDenied for role x, had %s\n", secret)
		return 3
	case "garbage":
		fmt.Println("Secret: " + secret)
		return 0
	case "huge":
		for {
			if _, err := os.Stdout.WriteString(strings.Repeat(hidden, 1000)); err != nil {
				return 1
			}
		}
	case "hang":
		startChild("child")
		meet()
		return 1
	case "child":
		meet()
		return 0
	case "orphan":
		startChild("child")
		meet()
	case "gate":
		meet()
	case "stuck":
		select {}
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]string{"ServerURL": server, "Username": user, "Secret": secret})
	return 0
}

// startChild starts a process of this one's group, which holds its output open.
func startChild(name string) {
	c := exec.Command(filepath.Join(filepath.Dir(os.Args[0]), helperPrefix+name), "get")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		panic(err)
	}
}

func actAsPlugin(name string) int {
	var request pluginRequest
	if err := json.Unmarshal([]byte(input()), &request); err != nil || request.Kind != "CredentialProviderRequest" {
		return 9
	}
	n := called(request.Image + " " + request.APIVersion + " " + strings.Join(os.Args[1:], " ") + " " + os.Getenv("REGION"))
	if name == "gate" {
		meet()
	}
	if name == "fail" {
		fmt.Fprintf(os.Stderr, "no instance profile\n")
		return 1
	}
	response := map[string]any{
		"kind": "CredentialProviderResponse", "apiVersion": request.APIVersion, "cacheKeyType": os.Getenv("REACH"),
		"auth": map[string]any{
			"*.example.com": map[string]string{"username": "plugin", "password": fmt.Sprintf("%s-%d", hidden, n)},
			"docker.io":     map[string]string{"username": "hub", "password": hidden},
		},
	}
	if d, ok := os.LookupEnv("DURATION"); ok {
		response["cacheDuration"] = d
	}
	switch name {
	case "version":
		response["apiVersion"] = providerGroup + "v1alpha1"
	case "reach":
		response["cacheKeyType"] = hidden
	case "badtime":
		response["cacheDuration"] = hidden
	case "empty":
		response["auth"] = nil
	case "garbage":
		fmt.Println(hidden)
	}
	_ = json.NewEncoder(os.Stdout).Encode(response)
	return 0
}

// site is a place for files and programs of one test.
type site struct {
	t   *testing.T
	dir string
	env map[string]string
}

func newSite(t *testing.T, programs ...string) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "cred") // a short path: sockets must have one
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &site{t: t, dir: dir}
	s.env = map[string]string{
		"HOME": filepath.Join(dir, "home"), "PATH": s.path("bin"), "CALLS": s.path("calls"), "SOCK": s.path("sock"), "XDG_RUNTIME_DIR": s.path("run"),
		"GORACE": "atexit_sleep_ms=0", // for programs under the race detector
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.path("bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		if err := os.Symlink(self, filepath.Join(s.path("bin"), p)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) write(name, text string) string {
	s.t.Helper()
	path := s.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func (s *site) copy(to, from string) {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", from))
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(to, string(data))
}

func (s *site) calls() []string {
	data, err := os.ReadFile(s.path("calls"))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// meeting is where programs meet the test.
type meeting struct {
	*site
	net.Listener
}

func (s *site) meeting() *meeting {
	s.t.Helper()
	l, err := net.Listen("unix", s.path("sock"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { l.Close() })
	return &meeting{s, l}
}

// guests waits for n programs and returns their connections by name.
func (m *meeting) guests(n int) map[string]net.Conn {
	m.t.Helper()
	all := map[string]net.Conn{}
	for range n {
		c, err := m.Accept()
		if err != nil {
			m.t.Fatal(err)
		}
		m.t.Cleanup(func() { c.Close() })
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			m.t.Fatal(err)
		}
		name, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			m.t.Fatal(err)
		}
		all[strings.TrimSpace(name)] = c
	}
	return all
}

// release lets a program go on.
func release(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
}

// ended fails unless the process at the other end ends.
func ended(t *testing.T, name string, c net.Conn) {
	t.Helper()
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s lives on: %v", name, err)
	}
}
