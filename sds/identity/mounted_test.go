package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// mount makes a rig whose identity is in files, which it writes.
func mount(t *testing.T, ca *testca.CA) (r *rig, rotate func() testca.Pair) {
	t.Helper()
	dir := t.TempDir()
	f := Triple{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), Root: filepath.Join(dir, "root")}
	r = &rig{t: t, cfg: Config{Choice: Choice{Source: Files, Files: f}, Output: filepath.Join(dir, "out")}}
	return r, func() testca.Pair {
		pair := ca.Issue(t, testca.Leaf{Hosts: []string{testID}})
		r.write(f.Cert, pair.CertPEM)
		r.write(f.Key, pair.KeyPEM)
		r.write(f.Root, ca.PEM)
		return pair
	}
}

// wantOutput wants a pair and the names of roots in the output directory.
func (r *rig) wantOutput(pair testca.Pair, roots string) {
	r.t.Helper()
	got, err := tls.LoadX509KeyPair(filepath.Join(r.cfg.Output, outputChain), filepath.Join(r.cfg.Output, outputKey))
	if err != nil || !got.Leaf.Equal(pair.Cert) {
		r.t.Errorf("the pair in the output directory: %v, want the one mounted", err)
	}
	data, err := os.ReadFile(filepath.Join(r.cfg.Output, outputRoots))
	if certs, bad := certificates(string(data)); err != nil || bad != nil || names(certs) != roots {
		r.t.Errorf("roots in the output directory: %v, %v, %q, want %q", err, bad, names(certs), roots)
	}
}

func names(certs []*x509.Certificate) string {
	var all []string
	for _, c := range certs {
		all = append(all, c.Subject.CommonName)
	}
	return strings.Join(all, " ")
}

// Mounted files are copied to the output directory, always as a pair that matches.
func TestMountedFilesToOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := testca.New(t, "platform")
		r, rotate := mount(t, ca)
		w := r.run()
		time.Sleep(1500 * time.Millisecond) // from now on between two looks
		if st := w.Status(); !strings.Contains(st.Output, "not written to") {
			t.Errorf("without files: %+v", st)
		}
		pair := rotate()
		time.Sleep(2 * time.Second)
		r.wantOutput(pair, "platform")
		if st := w.Status(); st.Output != "" {
			t.Errorf("with files: %s", st.Output)
		}
		half := ca.Issue(t, testca.Leaf{Hosts: []string{testID}})
		r.write(r.cfg.Choice.Files.Cert, slices.Concat(pair.CertPEM[:512], half.CertPEM[512:])) // what a look sees while it is written
		time.Sleep(time.Second)
		r.wantOutput(pair, "platform")
		r.write(r.cfg.Choice.Files.Cert, half.CertPEM)
		time.Sleep(5 * time.Second)
		r.wantOutput(pair, "platform")
		if st := w.Status(); !strings.Contains(st.Output, "does not match") {
			t.Errorf("with half a rotation: %q", st.Output)
		}
		r.write(r.cfg.Choice.Files.Key, half.KeyPEM)
		time.Sleep(2 * time.Second)
		r.wantOutput(half, "platform")
		if st := w.Status(); st.Output != "" {
			t.Errorf("after the rotation: %s", st.Output)
		}
	})
}

// What the control plane says to trust counts beside mounted roots only when it is wanted.
func TestMountedRootsAndBundle(t *testing.T) {
	for name, too := range map[string]bool{"too": true, "not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, rotate := mount(t, testca.New(t, "platform"))
				r.cfg.BundleToo = too
				pair := rotate()
				w := r.run()
				time.Sleep(500 * time.Millisecond) // from now on between two looks
				want := func(step, roots string) {
					t.Helper()
					synctest.Wait()
					got, _, _ := w.get(Roots)
					if ca := got.GetValidationContext().GetTrustedCa(); w.roots(t) != roots || (ca.GetFilename() == "") != (roots != "") {
						t.Errorf("%s: roots %q, file %q; want %q", step, w.roots(t), ca.GetFilename(), roots)
					}
				}
				want("without a bundle", "")
				bundle := []string{string(testca.New(t, "bundled").PEM)}
				if err := w.SetTrustBundle(bundle); err != nil {
					t.Fatal(err)
				}
				both, three := "", ""
				if too {
					both, three = "platform bundled", "platform next bundled"
				}
				want("with a bundle", both)
				r.write(r.cfg.Choice.Files.Root, nil)
				time.Sleep(2 * time.Second)
				want("with an empty file", both)
				r.write(r.cfg.Choice.Files.Root, append(testca.New(t, "platform").PEM, testca.New(t, "next").PEM...))
				time.Sleep(2 * time.Second)
				want("with another file", three)
				if too {
					r.wantOutput(pair, three)
				}
				if err := w.SetTrustBundle(nil); err != nil {
					t.Fatal(err)
				}
				want("after the bundle", "")
			})
		})
	}
}

// The roots in the output directory are the mounted ones, when they replace the authority's.
func TestMountedRootToOutput(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		dir := t.TempDir()
		r.cfg.Choice.Files.Root, r.cfg.Output, r.cfg.OutputShared = filepath.Join(dir, "root"), filepath.Join(dir, "out"), true
		r.write(r.cfg.Choice.Files.Root, testca.New(t, "mounted").PEM)
		w := r.run()
		synctest.Wait()
		r.wantOutput(testca.Pair{Cert: w.leaf(t)}, "mounted")
		r.write(r.cfg.Choice.Files.Root, testca.New(t, "next").PEM)
		time.Sleep(2 * time.Second)
		r.wantOutput(testca.Pair{Cert: w.leaf(t)}, "next")
		if info, err := os.Stat(filepath.Join(r.cfg.Output, outputKey)); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("key that is shared: %v, %v, want mode 0644", info, err)
		}
	})
}

// signerFunc is a Signer.
type signerFunc func(csr []byte) ([]string, error)

func (f signerFunc) Sign(_ context.Context, csr []byte, _ time.Duration, _ *tls.Certificate) ([]string, error) {
	return f(csr)
}

// Who does not know its namespace or account asks without it, and takes what the authority knows.
func TestOpenID(t *testing.T) {
	for name, tc := range map[string]struct{ ask, given, want string }{
		"account":     {ID("cluster.local", "ingress", ""), testID, ""},
		"both":        {ID("cluster.local", "", ""), testID, ""},
		"as asked":    {ID("cluster.local", "", ""), ID("cluster.local", "", ""), ""},
		"namespace":   {ID("cluster.local", "", "gw"), ID("cluster.local", "ingress", "other"), "are namespace and service account"},
		"other place": {ID("cluster.local", "shop", ""), testID, "are namespace and service account"},
		"other form":  {ID("cluster.local", "", ""), testID + "/x", "are namespace and service account"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				root := testca.New(t, "root")
				sign := signerFunc(func(text []byte) ([]string, error) {
					block, _ := pem.Decode(text)
					csr, err := x509.ParseCertificateRequest(block.Bytes)
					if err != nil || len(csr.URIs) != 1 || csr.URIs[0].String() != tc.ask {
						t.Errorf("request %v, %v, want for %s", csr, err, tc.ask)
					}
					_, leaf, err := root.Sign(csr.PublicKey, testca.Leaf{Hosts: []string{tc.given}})
					return []string{string(leaf), string(root.PEM)}, err
				})
				r := &rig{t: t, cfg: Config{
					Choice: Choice{Source: CA}, Signer: sign, ID: tc.ask, OpenID: true, Keep: filepath.Join(t.TempDir(), "kept"),
				}}
				for range 2 { // the second time from disk
					w := r.run()
					synctest.Wait()
					if _, why, _ := w.get(Certificate); (why == "") != (tc.want == "") || !strings.Contains(why, tc.want) {
						t.Fatalf("why %q, want %q", why, tc.want)
					}
					if tc.want == "" && w.Status().ID != tc.given {
						t.Errorf("status tells of %s, want %s", w.Status().ID, tc.given)
					}
					w.stop()
				}
			})
		})
	}
}
