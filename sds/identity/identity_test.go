package identity

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

func TestKeys(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg       Config
		block     string
		algorithm x509.PublicKeyAlgorithm
	}{
		"default":    {Config{}, "EC PRIVATE KEY", x509.ECDSA},
		"P-384":      {Config{Key: KeyP384}, "EC PRIVATE KEY", x509.ECDSA},
		"PKCS#8":     {Config{PKCS8: true}, "PRIVATE KEY", x509.ECDSA},
		"RSA":        {Config{Key: KeyRSA}, "RSA PRIVATE KEY", x509.RSA},
		"RSA PKCS#8": {Config{Key: KeyRSA, RSABits: 3072, PKCS8: true}, "PRIVATE KEY", x509.RSA},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
				r.cfg.Key, r.cfg.RSABits, r.cfg.PKCS8, r.cfg.Keep = tc.cfg.Key, tc.cfg.RSABits, tc.cfg.PKCS8, filepath.Join(t.TempDir(), "kept")
				w := r.run()
				synctest.Wait()
				leaf := w.leaf(t)
				secret, _, _ := w.get(Certificate)
				block, _ := pem.Decode(secret.GetTlsCertificate().GetPrivateKey().GetInlineBytes())
				if block.Type != tc.block || leaf.PublicKeyAlgorithm != tc.algorithm {
					t.Errorf("key in a block %q for %v, want %q, %v", block.Type, leaf.PublicKeyAlgorithm, tc.block, tc.algorithm)
				}
				w.stop()
				r.gate().shut(errRefused)
				w = r.run()
				synctest.Wait()
				if got := w.leaf(t); !got.Equal(leaf) {
					t.Error("another certificate after a restart")
				}
			})
		})
	}
}

func TestNewRefuses(t *testing.T) {
	good := func() Config {
		return Config{Server: newRecorder(), Choice: Choice{Source: CA}, Signer: &gate{}, ID: testID}
	}
	if _, err := New(good()); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"server":    {func(c *Config) { c.Server = nil }, "no server"},
		"signer":    {func(c *Config) { c.Signer = nil }, "no certificate authority"},
		"id":        {func(c *Config) { c.ID = "x" }, "must be spiffe://"},
		"source":    {func(c *Config) { c.Choice.Source = "x" }, "source \"x\" is unknown"},
		"key":       {func(c *Config) { c.Key = "x" }, "choose P-256, P-384 or RSA"},
		"small key": {func(c *Config) { c.Key, c.RSABits = KeyRSA, 1024 }, "choose 2048 to 8192"},
		"huge key":  {func(c *Config) { c.Key, c.RSABits = KeyRSA, 1<<20 }, "choose 2048 to 8192"},
		"grace":     {func(c *Config) { c.GraceRatio = 1.1 }, "must be shares"},
		"jitter":    {func(c *Config) { c.Jitter = 1.1 }, "must be shares"},
		"no number": {func(c *Config) { c.GraceRatio = math.NaN() }, "must be shares"},
		"nor this":  {func(c *Config) { c.Jitter = math.NaN() }, "must be shares"},
		"life":      {func(c *Config) { c.Life = -1 }, "must not be negative"},
		"path":      {func(c *Config) { c.Keep = "kept" }, "must be absolute"},
		"two":       {func(c *Config) { c.Server, c.ID = nil, "" }, "no server for the secrets\nSPIFFE"},
	} {
		cfg := good()
		tc.change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: New: %v, want %q", name, err, tc.want)
		}
	}
}

// Mounted files are the server's to follow; revocation lists come and go.
func TestMountedFilesAndCRL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		crl := filepath.Join(dir, "crl.pem")
		r := &rig{t: t, cfg: Config{Choice: Choice{Source: Files, Files: Triple{Cert: "/m/cert", Key: "/m/key", Root: "/m/root"}}, CRL: crl}}
		w := r.run()
		synctest.Wait()
		cert, _, _ := w.get(Certificate)
		if c := cert.GetTlsCertificate(); c.GetCertificateChain().GetFilename() != "/m/cert" || c.GetPrivateKey().GetFilename() != "/m/key" {
			t.Errorf("certificate: %v", cert)
		}
		for i, want := range []string{"", crl, ""} {
			root, _, pushes := w.get(Roots)
			if v := root.GetValidationContext(); v.GetTrustedCa().GetFilename() != "/m/root" || v.GetCrl().GetFilename() != want || pushes != i+1 {
				t.Errorf("step %d: roots %v, %d pushes", i, root, pushes)
			}
			if want == "" {
				r.write(crl, nil)
			} else if err := os.Remove(crl); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second)
		}
		if st := w.Status(); st.Source != Files || st.State != StateOK {
			t.Errorf("status: %+v", st)
		}
	})
}

// A root mounted alone replaces the authority's, and the revocation lists go with either.
func TestMountedRootWithAuthority(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		r.cfg.Choice.Files.Root = "/m/root"
		r.cfg.CRL = filepath.Join(t.TempDir(), "crl.pem")
		w := r.run()
		synctest.Wait()
		w.leaf(t)
		r.write(r.cfg.CRL, nil)
		time.Sleep(2 * time.Second)
		root, _, pushes := w.get(Roots)
		if v := root.GetValidationContext(); v.GetTrustedCa().GetFilename() != "/m/root" || v.GetCrl().GetFilename() != r.cfg.CRL || pushes != 2 {
			t.Errorf("roots: %v after %d pushes", root, pushes)
		}
		if err := w.SetTrustBundle([]string{string(testca.New(t, "b").PEM)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if _, _, pushes := w.get(Roots); pushes != 2 || !strings.Contains(r.log.String(), "is not used") {
			t.Errorf("%d pushes after a bundle that is not used, or nobody was told", pushes)
		}
	})
}

// Revocation lists that come or go later change the roots' secret, though the roots stay.
func TestRevocationListsWithAuthority(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		r.cfg.CRL = filepath.Join(t.TempDir(), "crl.pem")
		w := r.run()
		for _, want := range []string{"", r.cfg.CRL, ""} {
			if want == "" {
				_ = os.Remove(r.cfg.CRL)
			} else {
				r.write(want, []byte("lists"))
			}
			time.Sleep(2 * time.Second)
			secret, _, _ := w.get(Roots)
			if got := secret.GetValidationContext().GetCrl().GetFilename(); got != want || w.roots(t) != "root" {
				t.Errorf("revocation lists from %q beside roots %q, want %q", got, w.roots(t), want)
			}
		}
	})
}

func TestMetrics(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		r.Refuse(errRefused)
		w := r.run()
		time.Sleep(20 * time.Second)
		failures := w.Status().Failures
		r.Refuse(nil)
		time.Sleep(20 * time.Second)
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(w.Workload)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += " " + l.GetValue()
				}
				got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		st := w.Status()
		for name, want := range map[string]float64{
			"gateway_agent_identity_info ca": 1, "gateway_agent_identity_requests_total ok": 1, "gateway_agent_identity_failures": 0,
			"gateway_agent_identity_renewal_timestamp_seconds": float64(st.RenewAt.Unix()),
		} {
			if got[name] != want {
				t.Errorf("%s %v, want %v", name, got[name], want)
			}
		}
		if n := got["gateway_agent_identity_requests_total failed"]; n < float64(failures) || failures < 2 {
			t.Errorf("%v requests failed, %d in a row before the end", n, failures)
		}
		if _, err := json.Marshal(st); err != nil {
			t.Error(err)
		}
	})
}

// Everything at once; the race detector and the pairs that the server is given are the judges.
func TestHammer(t *testing.T) {
	r := newRig(t, xdstest.CAConfig{Life: 2 * time.Second})
	dir := t.TempDir()
	r.cfg.Keep, r.cfg.Output, r.cfg.Poll = filepath.Join(dir, "kept"), filepath.Join(dir, "out"), 5*time.Millisecond
	w := r.run()
	roots := []*testca.CA{r.Signer(), testca.New(t, "a"), testca.New(t, "b")}
	r.write(r.root, fmt.Appendf(nil, "%s%s%s", roots[0].PEM, roots[1].PEM, roots[2].PEM))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	loop := func(f func(i int)) {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				f(i)
				time.Sleep(time.Millisecond)
			}
		})
	}
	loop(func(i int) {
		if err := w.SetTrustBundle([]string{string(roots[i%3].PEM)}); err != nil {
			t.Error(err)
		}
	})
	loop(func(int) { _ = w.Status() })
	loop(func(int) { _ = w.TLS() })
	loop(func(int) { w.Collect(make(chan prometheus.Metric, 10)) })
	loop(func(i int) { r.SignWith(roots[i%3]); time.Sleep(20 * time.Millisecond) })
	loop(func(i int) {
		if err := os.WriteFile(r.token, []byte([]string{"good", "bad"}[i%2]), 0o600); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Millisecond)
	})
	loop(func(int) {
		if secret, _, _ := w.get(Certificate); secret != nil {
			w.leaf(t)
		}
	})
	wg.Wait()
	w.stop()
	if len(r.grants()) == 0 {
		t.Error("no certificate")
	}
}
