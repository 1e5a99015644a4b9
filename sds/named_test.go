package sds

import (
	"strings"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

func TestNamedSecrets(t *testing.T) {
	each(t, func(t *testing.T, protocol string) {
		ca, dir := testca.New(t, "ca"), t.TempDir()
		_, pair := pairIn(t, ca, dir)
		secret := func(name string, typ any) *tlsv3.Secret {
			s := &tlsv3.Secret{Name: name}
			switch v := typ.(type) {
			case *tlsv3.TlsCertificate:
				s.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: v}
			case *tlsv3.CertificateValidationContext:
				s.Type = &tlsv3.Secret_ValidationContext{ValidationContext: v}
			}
			return s
		}
		files := secret("site", &tlsv3.TlsCertificate{CertificateChain: fileSource(dir + "/tls.crt"), PrivateKey: fileSource(dir + "/tls.key")})
		r := newServerRig(t, pollOnly)
		in := newInbox(t, r, protocol, nil)
		in.subscribe("site") // before the configuration has it
		time.Sleep(time.Second)
		r.SetNamed([]*tlsv3.Secret{files, secret("idle", &tlsv3.CertificateValidationContext{TrustedCa: inlineSource(ca.PEM)}), nil, files})
		a := in.next(time.Second)
		if a.name != "site" || chainOf(a) != string(pair.CertPEM) {
			t.Fatalf("got %q", a.name)
		}
		in.ack(a)
		time.Sleep(time.Second)
		if st := r.status(t, "idle"); st.State != StateOK || st.Kind != kindValidation {
			t.Errorf("secret without streams: %+v, want read and checked all the same", st)
		}
		if st := r.Status(); len(st) != 2 {
			t.Errorf("%d secrets, want 2: no empty name, none twice", len(st))
		}

		next := ca.Issue(t, testca.Leaf{})
		r.SetNamed([]*tlsv3.Secret{secret("site", &tlsv3.TlsCertificate{CertificateChain: inlineSource(next.CertPEM), PrivateKey: inlineSource(next.KeyPEM)})})
		b := in.next(time.Second)
		if chainOf(b) != string(next.CertPEM) {
			t.Error("changed configuration: old content")
		}
		in.ack(b)

		r.SetNamed([]*tlsv3.Secret{secret("site", &tlsv3.CertificateValidationContext{TrustedCa: inlineSource(ca.PEM)})})
		in.silence(time.Minute) // a secret of another kind would switch off the verification of clients
		if st := r.status(t, "site"); st.State != StateDegraded || !strings.Contains(st.Reason, "needs another name") {
			t.Errorf("kind changed under a stream: %s (%s)", st.State, st.Reason)
		}

		r.SetNamed(nil)
		in.silence(time.Minute)
		if st := r.status(t, "site"); st.State != StateDegraded || !strings.Contains(st.Reason, "no longer in the configuration") {
			t.Errorf("removed while in use: %s (%s)", st.State, st.Reason)
		}
		in.close()
		time.Sleep(time.Second)
		if st := r.Status(); len(st) != 0 {
			t.Errorf("removed and unused: %+v, want none", st)
		}
	})
}
