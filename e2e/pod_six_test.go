package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// TestPodOfIPv6: a pod without IPv4, as in a cluster that has none.
func TestPodOfIPv6(t *testing.T) {
	if !inSpaceOf(t, sixth) {
		return
	}
	c := newContainerIn(t, sixth)
	c.proxy["terminationDrainDuration"] = "1s"
	c.agent.status, c.agent.ready = "[fd00::3]:15020", "[fd00::3]:15021"
	c.publish()
	c.start()
	c.agent.waitReady()
	if id := c.istiod.Requests(xdstest.CDS)[0].Node.GetId(); !strings.HasPrefix(id, "router~fd00::3~gw-abc.ingress~") {
		t.Errorf("node id %s", id)
	}
	if all := c.authority.Requests(); len(all) != 1 || !all[0].Granted {
		t.Errorf("requests to the CA: %+v", all)
	}
	for _, place := range []string{"[fd00::3]:15021/healthz/ready", "[fd00::3]:15090/stats/prometheus", "[::1]:15000/server_info", "127.0.0.1:8080/"} {
		if err := wantCode("http://"+place, http.StatusOK); err != nil {
			t.Error(err)
		}
	}
	if out, stderr, err := c.exec("wait", "--timeoutSeconds=5"); err != nil {
		t.Errorf("wait: %v, %s%s", err, out, stderr)
	}
	if out, stderr, err := c.exec("request", "GET", "server_info"); err != nil || !json.Valid([]byte(out)) {
		t.Errorf("request: %v, %s%s", err, out, stderr)
	}
	response, err := http.Post("http://[fd00::3]:15020/quitquitquit", "", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if readAll(t, response); response.StatusCode != http.StatusForbidden {
		t.Errorf("POST /quitquitquit from elsewhere = %s, want 403", response.Status)
	}
	c.agent.signal(syscall.SIGTERM)
	if code := c.agent.wait(10 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	c.wantQuiet()
}
