package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/testbuffer"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// contender is one of the two programs that are compared.
type contender struct {
	name    string
	program string
}

var (
	realPilot = contender{"pilot-agent", realAgent}
	thisAgent = contender{"gateway-agent", "/usr/local/bin/pilot-agent"}
)

// surroundings are what a pod has besides what every gateway pod has.
type surroundings struct {
	env                 map[string]string // "-": without the variable
	labels, annotations string            // lines of the downward API's files; "" as usual
	files               map[string]string // in the data directory
	args                []string
}

// duel is a container in which either program runs, one after the other.
type duel struct {
	*container
	network
	tap   *wiretap
	usual map[string]string
}

func newDuel(t *testing.T, n network) *duel {
	t.Helper()
	if err := addEthernet("eth0", netip.MustParseAddr(n.pod)); err != nil { // on loopback, pilot-agent sees no address
		t.Fatalf("interface eth0: %v", err)
	}
	c := newContainerIn(t, n)
	c.istiod.Stop()
	c.authority = xdstest.NewCA(lenient{t}, xdstest.CAConfig{ID: gatewayID, Tokens: []string{"token-1"}})
	c.authority.SignWith(c.ca)
	c.istiod = xdstest.NewIstiod(lenient{t}, xdstest.IstiodConfig{CA: c.authority, Clusters: []string{"Kubernetes", "remote-1", ""}})
	d := &duel{container: c, network: n, usual: maps.Clone(c.env)}
	d.tap = newWiretap(t, net.JoinHostPort(n.istiod, "15012"), c.istiod.Address, c.certificate(c.ca))
	withRealAgent(t, c)
	c.publish()
	return d
}

// run starts a side in these surroundings, looks at it once it serves, and ends it if it still is there.
func (d *duel) run(who contender, s surroundings, looks ...func(*duel, seen)) seen {
	d.t.Helper()
	found := seen{}
	d.prepare(who, s)
	d.start(s.args...)
	if found["start"] = d.started(); found["start"] == "serves" {
		for _, look := range looks {
			look(d, found)
		}
	}
	d.agent.kill()
	return found
}

func (d *duel) prepare(who contender, s surroundings) {
	d.t.Helper()
	d.clean()
	d.tap.forget()
	d.program, d.env, d.agent.log = []string{who.program}, maps.Clone(d.usual), &testbuffer.Buffer{}
	for name, value := range s.env {
		if d.env[name] = value; value == "-" {
			delete(d.env, name)
		}
	}
	for name, text := range s.files {
		makeFile(d.t, filepath.Join(d.volumes, "var/lib/istio/data", name), text, 0o644)
	}
	d.project("etc/istio/pod", map[string]string{
		"labels": cmp.Or(s.labels, podLabelLines), "annotations": cmp.Or(s.annotations, podAnnotationLines),
	})
}

const (
	podLabelLines      = "app=\"gw\"\nistio=\"ingress\"\npod-template-hash=\"5d9\"\nservice.istio.io/canonical-name=\"gw\"\n"
	podAnnotationLines = "inject.istio.io/templates=\"gateway\"\nprometheus.io/port=\"15020\"\n"
)

// clean leaves nothing of the last container in what can be written.
func (d *duel) clean() {
	d.t.Helper()
	dirs := []string{filepath.Join(d.root, "etc/istio/proxy")}
	for volume, writable := range volumesOf {
		if writable {
			dirs = append(dirs, filepath.Join(d.volumes, volume))
		}
	}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, entry := range entries {
			if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
				d.t.Fatal(err)
			}
		}
	}
}

// started waits until the gateway is ready as Kubernetes asks, or ends.
func (d *duel) started() string {
	d.t.Helper()
	how := "serves"
	d.agent.eventually(30*time.Second, "the gateway is ready", func() error {
		select {
		case <-d.agent.done:
			how = fmt.Sprintf("ends with %d", d.agent.wait(time.Second))
			return nil
		default:
			return wantCode("http://"+d.agent.ready+"/healthz/ready", 200)
		}
	})
	return how
}
