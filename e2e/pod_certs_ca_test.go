package e2e

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// TestPodProvisioned: PROV_CERT: the only thing that a machine has is a certificate for its first steps; when that has expired, renewals
// are by the own one.
func TestPodProvisioned(t *testing.T) {
	if !inSpace(t) {
		return
	}
	c := newContainer(t)
	c.mount("etc/provisioned", false)
	c.project("var/run/secrets/tokens", nil)
	c.project("var/run/secrets/istio", nil)
	first := c.ca.Issue(t, testca.Leaf{Hosts: []string{gatewayID}, NotAfter: time.Now().Add(10 * time.Second)})
	c.project("etc/provisioned", map[string]string{
		"cert-chain.pem": string(first.CertPEM), "key.pem": string(first.KeyPEM), "root-cert.pem": string(c.ca.PEM),
	})
	c.env["PROV_CERT"], c.env["SECRET_TTL"] = "/etc/provisioned", "6s"
	c.publishMutual("default", "ROOTCA")
	c.start()
	c.agent.waitReady()
	c.wantMutualOf(c.ca)
	c.agent.eventually(30*time.Second, "the CA has certified it after the first certificate had expired", func() error {
		all := c.authority.Requests()
		if last := all[len(all)-1]; !last.Granted || last.At.Before(first.Cert.NotAfter.Add(time.Second)) {
			return fmt.Errorf("%d requests, the last at %v, granted: %v", len(all), last.At, last.Granted)
		}
		return nil
	})
	for _, r := range c.authority.Requests() {
		if r.Token != "" || r.Peer != gatewayID || r.Life != 6*time.Second {
			t.Errorf("a request with token %q, certificate of %q, for %v; want the certificate alone, for 6 s", r.Token, r.Peer, r.Life)
		}
	}
	c.istiod.Stop()
	c.istiod.Start()
	c.header = "two"
	c.publishMutual("default", "ROOTCA")
	c.agent.eventually(5*time.Second, "istiod, back, knows the gateway", func() error { return wantHeader(podURL, "x-route", "two") })
	c.wantMutualOf(c.ca)
	c.wantQuiet()
}

// TestPodOutput: OUTPUT_CERTS has a pair that matches at any time while certificates rotate, and is never where the identity comes from,
// though it is a place of mounted files, and root has put some there. The CA wants to be told the signer, and both servers want headers.
func TestPodOutput(t *testing.T) {
	if !inSpace(t) {
		return
	}
	c := newContainer(t)
	c.mount(etcCerts, true)
	old := c.ca.Issue(t, testca.Leaf{Hosts: []string{gatewayID}})
	for name, text := range map[string][]byte{"cert-chain.pem": old.CertPEM, "key.pem": old.KeyPEM, "root-cert.pem": c.ca.PEM} {
		makeFile(t, filepath.Join(c.volumes, etcCerts, name), string(text), 0o644)
	}
	c.replaceCA(xdstest.CAConfig{Tokens: []string{"token-1"}, CertSigner: "signer.example/gw", Header: map[string]string{"x-ca": "to the CA"}}, map[string]string{"x-xds": "to istiod"})
	maps.Copy(c.env, map[string]string{
		"OUTPUT_CERTS": "./etc/certs", "SECRET_TTL": "5s", "SECRET_GRACE_PERIOD_RATIO": "0.7", "WORKLOAD_RSA_KEY_SIZE": "3072", "PKCS8_KEY": "true",
		"ISTIO_META_CERT_SIGNER": "signer.example/gw", "CA_HEADER_X-CA": "to the CA", "XDS_HEADER_X-XDS": "to istiod",
	})
	c.publishMutual("default", "ROOTCA")
	c.start()
	c.agent.waitReady()
	c.wantMutualOf(c.ca)
	dir := filepath.Join(c.volumes, etcCerts)
	watched := watchPairs(t, dir)
	c.wantGrants(3)
	c.agent.kill() // what it has written is there when the next one starts
	c.start()
	c.wantGrants(2)
	c.agent.waitReady()
	c.wantMutualOf(c.ca)
	if pairs := watched(); pairs < 3 {
		t.Errorf("%d pairs in the output directory, want one after the other", pairs)
	}
	c.agent.eventually(5*time.Second, "Envoy shows what the output directory has", func() error {
		pair, err := pairOf(dir)
		serial, bad := handshakeWith(podMutual, &pair)
		if err = errors.Join(err, bad); err == nil && serial != pair.Leaf.SerialNumber.String() {
			err = fmt.Errorf("serial %s, want %s", serial, pair.Leaf.SerialNumber)
		}
		return err
	})
	c.wantOutput(dir)
	c.wantQuiet()
}

// wantGrants waits for some more certificates of the CA.
func (c *container) wantGrants(more int) {
	c.t.Helper()
	before := len(c.authority.Requests())
	c.agent.eventually(30*time.Second, "the CA has certified the gateway again", func() error {
		if all := c.authority.Requests(); len(all) < before+more || !all[len(all)-1].Granted {
			return fmt.Errorf("%d requests, want %d", len(all), before+more)
		}
		return nil
	})
}

// watchPairs reads a directory's pair all the time and fails the test when it does not match. The returned function ends that, and tells
// how many pairs there were.
func watchPairs(t *testing.T, dir string) (stop func() int) {
	t.Helper()
	done := make(chan struct{})
	seen := map[string]bool{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			pair, err := pairOf(dir)
			switch {
			case err == nil:
				seen[pair.Leaf.SerialNumber.String()] = true
			case !errors.Is(err, fs.ErrNotExist): // this set has been removed: another one is there
				t.Errorf("the output directory: %v", err)
			}
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return func() int {
		close(done)
		wg.Wait()
		return len(seen)
	}
}

// wantOutput wants the files that other containers of the pod read, which run as other users.
func (c *container) wantOutput(dir string) {
	t := c.t
	t.Helper()
	for _, name := range []string{"cert-chain.pem", "key.pem", "root-cert.pem"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: %v, %v; want a file for all users of the pod", name, info, err)
		}
	}
	key, err := os.ReadFile(filepath.Join(dir, "key.pem"))
	if err != nil || !strings.HasPrefix(string(key), "-----BEGIN PRIVATE KEY-----\n") {
		t.Errorf("the key is no PKCS#8: %.40s, %v", key, err)
	}
	roots, err := os.ReadFile(filepath.Join(dir, "root-cert.pem"))
	if err != nil || string(roots) != string(c.ca.PEM) {
		t.Errorf("roots in the output directory: %v, %d bytes, want the CA's", err, len(roots))
	}
	pair, err := pairOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	if key, ok := pair.PrivateKey.(*rsa.PrivateKey); !ok || key.N.BitLen() != 3072 {
		t.Errorf("the key is a %T, want RSA of 3072 bits", pair.PrivateKey)
	}
}

// handshakeWith is handshake with a client certificate.
func handshakeWith(address string, pair *tls.Certificate) (string, error) {
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*pair}})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
}

// serviceToken is what Kubernetes gives a service account, with a serial number to tell one from the next.
func serviceToken(serial int) string {
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	return encode(`{"alg":"RS256"}`) + "." +
		encode(fmt.Sprintf(`{"jti":"%d","sub":"system:serviceaccount:ingress:gw"}`, serial)) + "." + encode("not signed")
}

// TestPodFirstParty: a pod of an older Istio has only Kubernetes' own token, and nobody has told it its service account; the CA answers
// nonsense at first, its certificate is a public one, and the token is replaced.
func TestPodFirstParty(t *testing.T) {
	if !inSpace(t) {
		return
	}
	const tokens, roots = "var/run/secrets/kubernetes.io/serviceaccount", "etc/roots"
	c := newContainer(t)
	c.mount(tokens, false)
	c.mount(roots, false)
	c.project("var/run/secrets/tokens", nil)
	c.project("var/run/secrets/istio", nil)
	one, two := serviceToken(1), serviceToken(2)
	c.project(tokens, map[string]string{"token": one})
	c.project(roots, map[string]string{"istiod.pem": string(c.ca.PEM), "public.pem": string(c.ca.PEM)})
	c.replaceCA(xdstest.CAConfig{Tokens: []string{one, two}}, nil)
	delete(c.env, "SERVICE_ACCOUNT")
	maps.Copy(c.env, map[string]string{
		"JWT_POLICY": "first-party-jwt", "XDS_ROOT_CA": "/etc/roots/istiod.pem", "CA_ROOT_CA": "SYSTEM", "SSL_CERT_FILE": "/etc/roots/public.pem",
		"ECC_SIGNATURE_ALGORITHM": "ECDSA", "ECC_CURVE": "P384", "SECRET_TTL": "6s",
	})
	c.authority.Mangle(c.nonsense())
	c.publishMutual("default", "ROOTCA")
	c.start()
	c.agent.eventually(20*time.Second, "the CA has answered all kinds of nonsense", func() error {
		if n := len(c.authority.Requests()); n < 5 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	if code, body, _, err := get("http://" + podStatus + "/healthz/ready"); err != nil || code != http.StatusServiceUnavailable {
		t.Errorf("readiness with a CA that answers nonsense = %d %s, %v; want 503", code, body, err)
	}
	c.authority.Mangle(nil)
	c.agent.waitReady()
	c.wantMutualOf(c.ca)
	c.project(tokens, map[string]string{"token": two})
	c.authority.Accept(two)
	c.wantGrants(2)
	all := c.authority.Requests()
	if first, last := all[0], all[len(all)-1]; first.Token != one || last.Token != two {
		t.Errorf("the tokens of the first and the last request are not the ones mounted then: %q, %q", first.Token, last.Token)
	}
	if key, ok := all[0].CSR.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve.Params().BitSize != 384 {
		t.Errorf("the request is for a %T, want P-384", all[0].CSR.PublicKey)
	}
	c.wantMutualOf(c.ca)
	if remarks := c.remarks(); len(remarks) != 1 || !strings.HasPrefix(remarks[0], "SERVICE_ACCOUNT is not set: ") {
		t.Errorf("remarks %q, want one on SERVICE_ACCOUNT", remarks)
	}
	if log := c.agent.log.String(); strings.Contains(log, one) || strings.Contains(log, two) || strings.Contains(log, "-----BEGIN") {
		t.Error("the log holds a token or PEM")
	}
}

// nonsense is what a CA may answer instead of a certificate: each call another kind.
func (c *container) nonsense() func(chain []string) []string {
	other := testca.New(c.t, "other")
	wrong := other.Issue(c.t, testca.Leaf{Hosts: []string{gatewayID}})
	expired := c.ca.Issue(c.t, testca.Leaf{Hosts: []string{gatewayID}, NotAfter: time.Now().Add(-time.Minute)})
	kinds := []func(chain []string) []string{
		func(chain []string) []string { return chain[:1] },
		func(chain []string) []string { return []string{string(wrong.CertPEM), string(other.PEM)} },
		func(chain []string) []string { return []string{string(expired.CertPEM), chain[1]} },
		func(chain []string) []string { return []string{chain[0], "", ""} },
		func([]string) []string { return []string{strings.Repeat("x", 4<<20), "x"} },
	}
	turn := 0
	return func(chain []string) []string {
		turn++
		return kinds[(turn-1)%len(kinds)](chain)
	}
}
