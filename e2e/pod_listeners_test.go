package e2e

import (
	"bufio"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

const (
	podSecureEnvoy   = ":15091"
	podSecureMetrics = ":15092"
	podSixth         = "fd00::3"
)

// TestPodListeners: the listeners that are not users' in a pod of both IP families, behind a load balancer that speaks the PROXY protocol, with
// metrics for the mesh only.
func TestPodListeners(t *testing.T) {
	if !inSpace(t) {
		return
	}
	// The interface shows that the pod has both families; without a carrier nobody gets through to it.
	if err := errors.Join(addEthernet("eth0", netip.MustParseAddr("fd00::5")), addAddress6(netip.MustParseAddr(podSixth))); err != nil {
		t.Fatalf("addresses of IPv6: %v", err)
	}
	c := newContainer(t)
	maps.Copy(c.env, map[string]string{
		"ENVOY_SECURE_METRICS_PORT": podSecureEnvoy[1:], "ENVOY_SECURE_MERGED_METRICS_PORT": podSecureMetrics[1:], "ISTIO_DUAL_STACK": "true",
		"ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL": "true", "ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS": "2",
	})
	c.proxy["terminationDrainDuration"] = "1s"
	c.publish()
	c.start()
	c.agent.waitReady()
	for _, host := range []string{podAddress, "[" + podSixth + "]"} {
		c.wantOwnListeners(host)
	}
	c.wantLimit(2)
	c.agent.signal(syscall.SIGTERM)
	if code := c.agent.wait(10 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func (c *container) wantOwnListeners(host string) {
	t := c.t
	t.Helper()
	for _, first := range []string{"", "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			if err := readiness(host+":15021", first, method); err != nil {
				t.Errorf("%s %s after %q: %v", method, host, first, err)
			}
		}
	}
	if err := wantCompressed("http://" + host + ":15090/stats/prometheus"); err != nil {
		t.Error(err)
	}
	for url, metric := range map[string]string{
		host + podSecureEnvoy + "/stats/prometheus": "envoy_server_live", host + podSecureMetrics + "/stats/prometheus": "gateway_agent_",
		host + podSecureMetrics + "/metrics": "envoy_server_live",
	} {
		body, err := c.asPeer("https://"+url, c.ca)
		if err != nil || !strings.Contains(body, metric) {
			t.Errorf("%s with a certificate of the mesh: %v, %.100q; want %s", url, err, body, metric)
		}
		for who, ca := range map[string]*testca.CA{"nobody": nil, "a stranger": testca.New(t, "stranger")} {
			if body, err := c.asPeer("https://"+url, ca); err == nil {
				t.Errorf("%s as %s: %.100q, want no answer", url, who, body)
			}
		}
		if code, _, _, err := get("http://" + url); err == nil {
			t.Errorf("%s in plaintext = %d, want no answer", url, code)
		}
	}
	if body, err := c.asPeer("https://"+host+podSecureMetrics+"/quitquitquit", c.ca); err == nil {
		t.Errorf("/quitquitquit on the metrics' port: %q", body)
	}
}

// wantLimit: so many connections of clients, and no limit on the others' listeners.
func (c *container) wantLimit(most int) {
	t := c.t
	t.Helper()
	for range most {
		conn, err := net.Dial("tcp", podPlain)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: gw\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		readAll(t, response) // now it counts
	}
	c.agent.eventually(10*time.Second, "one connection more is refused", func() error {
		if code, _, _, err := get(podURL); err == nil {
			return fmt.Errorf("status %d", code)
		}
		return nil
	})
	if err := wantCode("http://"+podReady+"/healthz/ready", http.StatusOK); err != nil {
		t.Error(err)
	}
}

// readiness asks over a connection that begins with some bytes.
func readiness(address, first, method string) error {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprintf(conn, "%s%s /healthz/ready HTTP/1.1\r\nHost: probe\r\n\r\n", first, method); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", response.Status)
	}
	return nil
}

func wantCompressed(url string) error {
	request, err := http.NewRequest(http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("Accept-Encoding", "gzip")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if encoding := response.Header.Get("Content-Encoding"); encoding != "gzip" {
		return fmt.Errorf("%s: encoding %q, want gzip", url, encoding)
	}
	reader, err := gzip.NewReader(response.Body)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(reader)
	if err == nil && !strings.Contains(string(body), "envoy_server_live") {
		err = fmt.Errorf("%s: %.100q", url, body)
	}
	return err
}

// asPeer asks as a workload with a certificate of ca, if any, and wants the answer to come from the gateway.
func (c *container) asPeer(url string, ca *testca.CA) (string, error) {
	roots := x509.NewCertPool()
	roots.AddCert(c.ca.Cert)
	config := &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error { return checkIdentity(state, roots) }}
	if ca != nil {
		pair := ca.Issue(c.t, testca.Leaf{Hosts: []string{"spiffe://cluster.local/ns/shop/sa/prometheus"}})
		own, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
		if err != nil {
			return "", err
		}
		config.Certificates = []tls.Certificate{own}
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", response.Status)
	}
	return string(body), err
}

// TestMoreCertificatesThanEnvoysOwnLimit: each comes on a stream of its own, and Envoy would open 1024.
func TestMoreCertificatesThanEnvoysOwnLimit(t *testing.T) {
	t.Parallel()
	const many = 1100
	a := newAgent(t)
	pair := testca.New(t, "many").Issue(t, testca.Leaf{Hosts: []string{"edge.example"}})
	address := freeAddress(t)
	var chains strings.Builder
	for i := range many {
		dir := filepath.Join(a.dir, "certs", fmt.Sprint(i))
		makeDirs(t, dir)
		for name, data := range map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Fprintf(&chains, `    - filter_chain_match: {server_names: [h%d.example]}
      transport_socket: {name: tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext,
        common_tls_context: {tls_certificates: [{certificate_chain: {filename: %[2]s/tls.crt}, private_key: {filename: %[2]s/tls.key}}]}}}
      filters: [{name: echo, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}]
`, i, dir)
	}
	a.startConfig(map[string]string{"envoy.yaml": fmt.Sprintf(`static_resources:
  listeners:
  - name: many
    address: {socket_address: {address: 127.0.0.1, port_value: %s}}
    listener_filters: [{name: tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector}}]
    filter_chains:
%s`, port(address), chains.String())})
	for i := 9; i < many; i += 10 { // the last one is among them
		conn, err := tls.Dial("tcp", address, &tls.Config{ServerName: fmt.Sprintf("h%d.example", i), InsecureSkipVerify: true})
		if err != nil {
			t.Fatalf("the certificate of number %d: %v", i, err)
		}
		conn.Close()
	}
}
