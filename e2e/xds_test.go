package e2e

import (
	"crypto/tls"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

func TestControlPlaneRestartUnderLoad(t *testing.T) {
	reg := startRegistry(t)
	reg.push("hello:v1", helloModule(t, "v1"))
	reg.push("hello:v2", helloModule(t, "v2"))
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p := plugin{name: "hello", uri: reg.uri("hello:v1"), value: "before"}
			cp, a, address, origin := newControlPlane(t), newAgent(t), freeAddress(t), startOrigin(t)
			url := "http://" + address + "/"
			cp.set(listener("main", address, p.discovered()), cluster("origin", origin), p.extension())
			a.start("--xds-address", cp.address, "--xds-mode", mode)
			a.waitReady()

			l := startLoad(t, url, 100)
			time.Sleep(time.Second)
			cp.stop()
			time.Sleep(5 * time.Second)
			p.uri, p.value = reg.uri("hello:v2"), "after"
			added := freeAddress(t)
			cp.set(listener("main", address, p.discovered()), listener("added", added), cluster("origin", origin), p.extension())
			cp.start()
			took := a.eventually(10*time.Second, "the change arrives", func() error { return wantHeader(url, "x-hello", "after") })
			t.Logf("the change was live %v after the control plane was back", took)
			a.eventually(5*time.Second, "the added listener serves", func() error { return wantCode("http://"+added+"/", 200) })
			l.wantNoFailure(500)
		})
	}
}

func TestRejectedListenerIsNotALoop(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run("controlplane/"+mode, func(t *testing.T) {
			t.Parallel()
			cp, a, address, origin := newControlPlane(t), newAgent(t), freeAddress(t), startOrigin(t)
			cp.set(listener("main", address), cluster("origin", origin))
			a.start("--xds-address", cp.address, "--xds-mode", mode)
			a.waitReady()
			before := cp.listeners.Load()
			// The origin's port is taken, by the origin.
			cp.set(listener("main", address), listener("taken", origin), cluster("origin", origin))
			time.Sleep(10 * time.Second)
			if n := cp.listeners.Load() - before; n < 1 || n > 5 {
				t.Errorf("%d LDS responses in 10 s, want 1 to 5", n)
			}
			if err := wantCode("http://"+address+"/", 200); err != nil {
				t.Error(err)
			}
			if text := a.statusText(); !strings.Contains(text, "Address already in use") {
				t.Errorf("status does not tell of the rejection:\n%s", text)
			}
		})
		t.Run("standalone/"+mode, func(t *testing.T) {
			t.Parallel()
			a, address, origin := newAgent(t), freeAddress(t), startOrigin(t)
			main := listener("main", address)
			a.startConfig(map[string]string{"all.yaml": resources(main, cluster("origin", origin))}, "--xds-mode", mode)
			a.write("taken.yaml", "# a comment\n"+resources(listener("taken", origin)))
			a.eventually(5*time.Second, "status names file, line and reason", func() error {
				if text := a.statusText(); !strings.Contains(text, "taken.yaml:3") || !strings.Contains(text, "Address already in use") {
					return fmt.Errorf("status:\n%s", text)
				}
				return nil
			})
			if err := wantCode("http://"+address+"/", 200); err != nil {
				t.Error(err)
			}
			good := freeAddress(t)
			a.write("taken.yaml", resources(listener("taken", good)))
			a.eventually(2*time.Second, "the repaired listener serves", func() error { return wantCode("http://"+good+"/", 200) })
			a.eventually(2*time.Second, "status forgets", func() error {
				if text := a.statusText(); strings.Contains(text, "Address already in use") {
					return fmt.Errorf("status:\n%s", text)
				}
				return nil
			})
		})
	}
}

// badEdits keep what runs; status says "file:line: reason", and the log has the same in fields.
var badEdits = []struct {
	name, file, text string
	line             int // 0: the mistake has no line
	reason           string
}{
	{"yaml", "bad.yaml", "resources:\n- {name: x\n- y", 2, "not valid YAML"},
	{"unknown field", "bad.yaml", "resources:\n- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: c\n  typo: 1\n", 4, "typo"},
	{"missing required field", "bad.yaml", "resources:\n- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n  type: STATIC\n", 2, "name"},
	{"no listener left", "all.yaml", "resources: []\n", 0, "listener"},
	{"unknown key", "bad.yaml", "resourses: []\n", 1, "resourses"},
}

func TestBadEditKeepsWhatRuns(t *testing.T) {
	t.Parallel()
	for i, edit := range badEdits {
		t.Run(edit.name, func(t *testing.T) {
			t.Parallel()
			a, url := plainGateway(t, "--xds-mode", modes[i%2])
			a.write(edit.file, edit.text)
			inStatus, inLog := edit.reason, edit.reason
			if edit.line > 0 {
				inStatus = fmt.Sprintf("%s:%d: ", edit.file, edit.line)
				inLog = fmt.Sprintf("%s line=%d ", edit.file, edit.line)
			}
			a.eventually(3*time.Second, "status and log say where and why", func() error {
				for want, text := range map[string]string{inStatus: a.statusText(), inLog: a.log.String()} {
					if !strings.Contains(text, want) || !strings.Contains(text, edit.reason) {
						return fmt.Errorf("no %q with %q in:\n%s", want, edit.reason, tail(text, 30))
					}
				}
				return nil
			})
			if err := wantCode(url, 200); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDanglingReferenceKeepsWhatRuns(t *testing.T) {
	t.Parallel()
	a, url := plainGateway(t)
	a.write("bad.yaml", strings.Replace(resources(listener("more", freeAddress(t))), "cluster: origin", "cluster: nowhere", 1))
	a.eventually(3*time.Second, "status names the cluster", func() error {
		if text := a.statusText(); !strings.Contains(text, "nowhere") || !strings.Contains(text, "bad.yaml:") {
			return fmt.Errorf("status:\n%s", text)
		}
		return nil
	})
	if err := wantCode(url, 200); err != nil {
		t.Error(err)
	}
}

func TestControlPlaneOverTLS(t *testing.T) {
	t.Parallel()
	ca, a, address := testca.New(t, "e2e"), newAgent(t), freeAddress(t)
	pair := ca.Issue(t, testca.Leaf{Hosts: []string{"xds.test"}})
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	cp := newControlPlane(t, grpc.Creds(credentials.NewServerTLSFromCert(&cert)))
	cp.set(listener("main", address), cluster("origin", startOrigin(t)))
	roots := filepath.Join(a.dir, "ca.pem")
	writeFile(t, roots, ca.PEM)

	a.start("--xds-address", cp.address, "--xds-ca", roots)
	a.eventually(10*time.Second, "status says that the name does not fit", func() error {
		if text := a.statusText(); !strings.Contains(text, "NOT READY") || !strings.Contains(text, "failed to verify certificate") {
			return fmt.Errorf("status:\n%s", text)
		}
		return nil
	})
	a.kill()
	a.start("--xds-address", cp.address, "--xds-ca", roots, "--xds-server-name", "xds.test")
	a.waitReady()
	if err := wantCode("http://"+address+"/", 200); err != nil {
		t.Error(err)
	}
}
