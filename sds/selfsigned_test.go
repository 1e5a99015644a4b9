package sds

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestSelfSigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir() + "/new/dir"
		make := func(hosts ...string) (string, *x509.Certificate) {
			t.Helper()
			cert, key, err := SelfSigned(dir, hosts)
			must(t, err)
			pair, err := tls.LoadX509KeyPair(cert, key)
			must(t, err)
			data, err := os.ReadFile(cert)
			must(t, err)
			return string(data), pair.Leaf
		}
		first, leaf := make()
		pool := x509.NewCertPool()
		pool.AddCert(leaf)
		for _, host := range []string{"localhost", "127.0.0.1", "[::1]"} {
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: host, CurrentTime: time.Now()}); err != nil {
				t.Errorf("verify for %s: %v", host, err)
			}
		}
		if life := time.Until(leaf.NotAfter).Round(time.Hour); life != 365*24*time.Hour {
			t.Errorf("valid for %v, want a year", life)
		}
		if info, err := os.Stat(dir + "/tls.key"); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("key: %v, %v, want mode 0600", info.Mode(), err)
		}
		time.Sleep(300 * 24 * time.Hour)
		if again, _ := make(); again != first {
			t.Error("made anew although it is valid for another two months")
		}
		other, leaf := make("example.org", "10.0.0.1")
		if other == first || len(leaf.DNSNames) != 1 || len(leaf.IPAddresses) != 1 {
			t.Errorf("for other hosts: %v %v", leaf.DNSNames, leaf.IPAddresses)
		}
		must(t, os.Chmod(dir+"/tls.key", 0o644))
		open, _ := make("example.org", "10.0.0.1")
		if info, err := os.Stat(dir + "/tls.key"); open == other || err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("a key that others could read is used again, mode %v, %v", info.Mode(), err)
		}
		must(t, os.WriteFile(dir+"/tls.key", []byte("damaged"), 0o600))
		if fixed, _ := make("example.org", "10.0.0.1"); fixed == open {
			t.Error("a damaged key is used again")
		}
		before, _ := make("example.org", "10.0.0.1")
		time.Sleep(340 * 24 * time.Hour)
		if renewed, _ := make("example.org", "10.0.0.1"); renewed == before {
			t.Error("not renewed in its last month")
		}
	})
	if _, _, err := SelfSigned("/dev/null/x", nil); err == nil {
		t.Error("SelfSigned in an impossible directory: no error")
	}
}
