package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

const (
	etcCerts    = "etc/certs"
	spiffeCerts = "var/run/secrets/workload-spiffe-credentials"
	spiffeUDS   = "var/run/secrets/workload-spiffe-uds"
)

// mount adds a volume to a container that has not started.
func (c *container) mount(name string, writable bool) {
	c.t.Helper()
	source, target := filepath.Join(c.volumes, name), filepath.Join(c.root, name)
	makeDirs(c.t, source, target)
	flags := uintptr(unix.MS_RDONLY)
	if writable {
		own(c.t, source, 0o777|os.ModeSetgid)
		flags = 0
	}
	bind(c.t, source, target, flags)
}

// replaceCA puts another CA of the same root in the place of the one there is, and an istiod that takes the same tokens.
func (c *container) replaceCA(config xdstest.CAConfig, header map[string]string) {
	c.t.Helper()
	c.istiod.Stop()
	config.ID = gatewayID
	c.authority = xdstest.NewCA(c.t, config)
	c.authority.SignWith(c.ca)
	tokens := map[string]xdstest.Identity{}
	for _, token := range config.Tokens {
		tokens[token] = ingress
	}
	c.istiod = xdstest.NewIstiod(c.t, xdstest.IstiodConfig{
		Address: c.istiod.Address, TLS: c.certificate(c.ca), CA: c.authority, NoHealth: true, Tokens: tokens, Header: header,
	})
}

// publishMutual has istiod send the plain listener, and one that shows a certificate and wants clients of roots, both by name.
func (c *container) publishMutual(certificate, roots string) {
	c.t.Helper()
	plain := gateway{address: podPlain, origin: c.origin, header: c.header}
	mutual := plain
	mutual.address, mutual.secret = podMutual, certificate
	items := append(plain.items(), mutual.items()[:2]...)
	for i, item := range items {
		if strings.Contains(item, "secret_configs") {
			item = strings.Replace(withIdentity(item), "name: ROOTCA", fmt.Sprintf("name: %q", roots), 1)
		}
		if strings.Contains(item, "listener.v3.Listener") {
			items[i] = strings.Replace(item, "address: 127.0.0.1", "address: 0.0.0.0", 1)
		}
	}
	c.set(items...)
}

// wantMutualOf: the gateway shows an identity from ca and lets in who has one from it, and nobody else.
func (c *container) wantMutualOf(ca *testca.CA) {
	c.t.Helper()
	c.agent.eventually(15*time.Second, "a workload of the mesh is let in", func() error { return c.peer(ca, ca) })
	if err := c.peer(testca.New(c.t, "stranger"), ca); err == nil {
		c.t.Error("a client of another mesh was let in")
	}
}

func (c *container) wantNeverAsked() {
	c.t.Helper()
	if asked := c.authority.Requests(); len(asked) > 0 {
		c.t.Errorf("the CA was asked: %+v", asked)
	}
}

// TestPodMountedFiles: a platform mounts the workload's certificate and rotates it; the CA is never asked.
func TestPodMountedFiles(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, volume string
		files        [3]string // certificate, key, roots
		env          map[string]string
		late         bool // they come after the start
	}{
		{"etc", etcCerts, [3]string{"cert-chain.pem", "key.pem", "root-cert.pem"}, map[string]string{"XDS_ROOT_CA": "./var/run/secrets/istio/root-cert.pem"}, false},
		{"spiffe", spiffeCerts, [3]string{"cert-chain.pem", "key.pem", "root-cert.pem"}, nil, false},
		{"gke", spiffeCerts, [3]string{"certificates.pem", "private_key.pem", "ca_certificates.pem"}, map[string]string{"CA_PROVIDER": "GkeWorkloadCertificate"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !inSpace(t) {
				return
			}
			c := newContainer(t)
			maps.Copy(c.env, tt.env)
			if tt.volume == etcCerts {
				c.mount(etcCerts, false)
			}
			platform := testca.New(t, "platform")
			rotate := func(ca *testca.CA) {
				pair := ca.Issue(t, testca.Leaf{Hosts: []string{gatewayID}})
				c.project(tt.volume, map[string]string{tt.files[0]: string(pair.CertPEM), tt.files[1]: string(pair.KeyPEM), tt.files[2]: string(ca.PEM)})
			}
			if !tt.late {
				rotate(platform)
			}
			c.publishMutual("default", "ROOTCA")
			c.start()
			if tt.late {
				c.agent.eventually(15*time.Second, "what needs no certificate serves", func() error { return wantCode(podURL, http.StatusOK) })
				if code, _, _, err := get("http://" + podStatus + "/healthz/ready"); err != nil || code != http.StatusServiceUnavailable {
					t.Errorf("readiness without files = %d, %v; want 503", code, err)
				}
				rotate(platform)
			}
			c.agent.waitReady()
			c.wantMutualOf(platform)
			next := testca.New(t, "platform")
			rotate(next)
			c.wantMutualOf(next)
			c.wantNeverAsked()
			c.wantQuiet()
		})
	}
}

// TestPodFileMountedCerts: FILE_MOUNTED_CERTS: istiod knows the gateway by its client certificate, without a token, and names the files of
// listeners.
func TestPodFileMountedCerts(t *testing.T) {
	if !inSpace(t) {
		return
	}
	const dir = "etc/gateway-certs"
	c := newContainer(t)
	c.mount(dir, false)
	c.project("var/run/secrets/tokens", nil)
	c.env["FILE_MOUNTED_CERTS"] = "true"
	for name, file := range map[string]string{
		"CLIENT_CERT_CHAIN": "client.pem", "CLIENT_KEY": "client.key", "CLIENT_ROOT_CERT": "root.pem",
		"SERVER_CERT_CHAIN": "server.pem", "SERVER_KEY": "server.key", "SERVER_ROOT_CERT": "root.pem",
	} {
		c.env["ISTIO_META_TLS_"+name] = "/" + dir + "/" + file
	}
	rotate := func(ca *testca.CA) {
		client, server := c.ca.Issue(t, testca.Leaf{Hosts: []string{gatewayID}}), ca.Issue(t, testca.Leaf{Hosts: []string{gatewayID}})
		c.project(dir, map[string]string{
			"client.pem": string(client.CertPEM), "client.key": string(client.KeyPEM), "root.pem": string(c.ca.PEM) + string(ca.PEM),
			"server.pem": string(server.CertPEM), "server.key": string(server.KeyPEM),
		})
	}
	rotate(c.ca)
	c.publishMutual("file-cert:/"+dir+"/server.pem~/"+dir+"/server.key", "file-root:/"+dir+"/root.pem")
	c.start()
	c.agent.waitReady()
	c.wantMutualOf(c.ca)
	for name, want := range map[string]string{"TLS_SERVER_CERT_CHAIN": "/" + dir + "/server.pem", "TLS_CLIENT_KEY": "/" + dir + "/client.key"} {
		if got := c.istiod.Requests(xdstest.CDS)[0].Node.GetMetadata().GetFields()[name].GetStringValue(); got != want {
			t.Errorf("istiod is told %s = %q, want %q", name, got, want)
		}
	}
	next := testca.New(t, "next")
	rotate(next)
	c.wantMutualOf(next)
	c.istiod.Stop()
	c.istiod.Start()
	c.header = "two"
	c.publishMutual("file-cert:/"+dir+"/server.pem~/"+dir+"/server.key", "file-root:/"+dir+"/root.pem")
	c.agent.eventually(10*time.Second, "istiod, back, knows the new client certificate", func() error { return wantHeader(podURL, "x-route", "two") })
	c.wantNeverAsked()
	c.wantQuiet()
}

// TestPodForeignSDS: the socket of the identity's server is a leftover at first, then a server's, then another's.
func TestPodForeignSDS(t *testing.T) {
	if !inSpace(t) {
		return
	}
	c := newContainer(t)
	c.env["WORKLOAD_IDENTITY_SOCKET_FILE"] = "spire.sock"
	socket := filepath.Join(c.volumes, spiffeUDS, "spire.sock")
	leftover, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	leftover.(*net.UnixListener).SetUnlinkOnClose(false)
	leftover.Close()
	serve := func(ca *testca.CA) {
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
		foreignSDS(t, socket, ca.Issue(t, testca.Leaf{Hosts: []string{gatewayID}}), ca.PEM)
		own(t, socket, 0o660)
	}
	c.publishMutual("default", "ROOTCA")
	c.start()
	c.agent.eventually(15*time.Second, "what needs no certificate serves", func() error { return wantCode(podURL, http.StatusOK) })
	if code, _, _, err := get("http://" + podStatus + "/healthz/ready"); err != nil || code != http.StatusServiceUnavailable {
		t.Errorf("readiness without the server = %d, %v; want 503", code, err)
	}
	for range 2 {
		issuer := testca.New(t, "issuer")
		serve(issuer)
		c.agent.waitReady()
		c.agent.eventually(4*time.Second, "the new server's identity is shown", func() error { return c.peer(issuer, issuer) })
		c.wantMutualOf(issuer)
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond) // the agent looks every second
	if code, _, _, err := get("http://" + podStatus + "/healthz/ready"); err != nil || code != http.StatusOK {
		t.Errorf("readiness when the server is gone = %d, %v; want 200", code, err)
	}
	c.wantNeverAsked()
	c.wantQuiet()
}

// TestPodStopsWithoutAddress: a pod whose network is not there yet, told to stop.
func TestPodStopsWithoutAddress(t *testing.T) {
	if !inSpace(t) {
		return
	}
	c := newContainer(t)
	delete(c.env, "INSTANCE_IP")
	c.seal()
	c.seal = nil
	line := append(c.program, "proxy", "router")
	cmd := containerCommand(t, c.root, c.environment(), line...)
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET // with nothing in it
	cmd.Stdout, cmd.Stderr = c.agent.log, c.agent.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the agent runs", func() error {
		if name := readProc(t, cmd.Process.Pid, "comm"); !strings.HasPrefix(name, "gateway-agent") {
			return errors.New(name)
		}
		return nil
	})
	time.Sleep(300 * time.Millisecond) // it waits for the network then
	began := time.Now()
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || time.Since(began) > 2*time.Second {
		t.Errorf("it ended after %v: %v; want exit code 0 at once", time.Since(began), err)
	}
	if log := c.agent.log.String(); log != "" {
		t.Errorf("it said %q", log)
	}
}

// pairOf reads a pair from one set of the output directory; one that is removed meanwhile is not there.
func pairOf(dir string) (tls.Certificate, error) {
	set, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.LoadX509KeyPair(filepath.Join(dir, set, "cert-chain.pem"), filepath.Join(dir, set, "key.pem"))
}
