package e2e

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/istio"
)

// TestPilotAgentVariables: every variable that the real pilot-agent registers is in our tables, and our list of those that it makes no use of
// has no others.
func TestPilotAgentVariables(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	askPilot(t, "collateral", "--html_fragment_with_front_matter", "-o", dir)
	page, err := os.ReadFile(filepath.Join(dir, "pilot-agent.html"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), `id="envvars"`)
	table, _, _ = strings.Cut(table, "</table>")
	var registered []string
	for _, match := range regexp.MustCompile(`<tr[^>]*>\s*<td><a[^>]*><code>([A-Z][A-Z0-9_]+)</code>`).FindAllStringSubmatch(table, -1) {
		registered = append(registered, match[1])
		if _, ok := istio.Lookup(match[1]); !ok {
			t.Errorf("pilot-agent registers %s: give it a row in internal/istio/variables.go, or a line in others.txt", match[1])
		}
	}
	if len(registered) < 200 {
		t.Fatalf("pilot-agent tells of %d variables only: is this the right page?", len(registered))
	}
	others, err := os.ReadFile("../internal/istio/others.txt")
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(others)) {
		if !slices.Contains(registered, name) {
			t.Errorf("others.txt has %s, which pilot-agent does not register", name)
		}
	}
}

// TestPilotAgentFlags: every flag of the real one's proxy changes what this agent would do, or is told; those of its other commands are there.
func TestPilotAgentFlags(t *testing.T) {
	t.Parallel()
	mesh := filepath.Join(t.TempDir(), "mesh")
	if err := os.WriteFile(mesh, []byte("defaultConfig: {discoveryAddress: 'other:15012'}"), 0o644); err != nil {
		t.Fatal(err)
	}
	values := map[string]string{
		"proxyLogLevel": "debug", "proxyComponentLogLevel": "http:debug", "meshConfig": mesh, "log_output_level": "default:debug", "profiling": "false",
		"log_as_json": "true", "concurrency": "7", "stsPort": "15463", "vklog": "9", "log_target": "stderr", "log_stacktrace_level": "default:error",
	}
	flags := flagsOf(t, "proxy")
	if len(flags) < 15 {
		t.Fatalf("pilot-agent proxy tells of %q only", flags)
	}
	usual := dryRun(t)
	for _, name := range flags {
		if name == "help" {
			continue
		}
		out := dryRun(t, "--"+name+"="+cmp.Or(values[name], "something"))
		settings, remarks, _ := strings.Cut(out, "\n#")
		before, _, _ := strings.Cut(usual, "\n#")
		if told := strings.Count(remarks, "# --"+name+" is ignored: "); told != 1 && settings == before {
			t.Errorf("--%s changes nothing and is told %d times:\n%s", name, told, remarks)
		} else if strings.Contains(remarks, "this agent does not know it") {
			t.Errorf("--%s is unknown:\n%s", name, remarks)
		}
	}
	for _, command := range []string{"request", "wait", "version"} {
		help, err := exec.Command(agentBinary, "pilot-agent", command, "--help").Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range flagsOf(t, command) {
			if !logging(name) && !strings.Contains(string(help), "--"+name+" ") {
				t.Errorf("%s has no --%s", command, name)
			}
		}
	}
}

// logging flags are of all of pilot-agent's commands; this agent's others take and skip them.
func logging(name string) bool { return strings.HasPrefix(name, "log_") || name == "vklog" }

func dryRun(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(agentBinary, append([]string{"proxy", "router", "--dry-run"}, args...)...)
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"POD_NAME=gw-abc", "POD_NAMESPACE=ingress", "SERVICE_ACCOUNT=gw", "INSTANCE_IP=" + podAddress, "GATEWAY_AGENT_DATA_DIR=/data", "HOME=/"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
	return strings.ReplaceAll(string(out), cmd.Dir, "")
}

func flagsOf(t *testing.T, command string) (names []string) {
	t.Helper()
	for _, match := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--([\w-]+)`).FindAllStringSubmatch(askPilot(t, command, "--help"), -1) {
		names = append(names, match[1])
	}
	return names
}

// askPilot runs the real pilot-agent.
func askPilot(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("../.tools/istio/pilot-agent", args...).Output()
	if err != nil {
		t.Fatalf("pilot-agent %q: %v: run 'make istio'", args, err)
	}
	return string(out)
}
