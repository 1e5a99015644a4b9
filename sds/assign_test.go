package sds

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

func inlinePair(p testca.Pair) *tlsv3.Secret {
	return &tlsv3.Secret{Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inlineSource(p.CertPEM), PrivateKey: inlineSource(p.KeyPEM),
	}}}
}

func TestAssigned(t *testing.T) {
	each(t, func(t *testing.T, protocol string) {
		ca := testca.New(t, "ca")
		first, second := ca.Issue(t, testca.Leaf{}), ca.Issue(t, testca.Leaf{})
		r := newServerRig(t, Config{PollOnly: true, Wait: time.Hour})
		in := newInbox(t, r, protocol, nil)
		r.Assign("default", nil, errors.New("the authority is away"))
		time.Sleep(time.Minute)
		if why := r.Waiting("default"); why != "" {
			t.Errorf("before anybody asks: %q", why)
		}
		in.subscribe("default")
		in.silence(time.Minute)
		if why := r.Waiting("default"); why != "the authority is away" || r.Waiting("other") != "" {
			t.Errorf("asked for in vain: %q, another: %q", why, r.Waiting("other"))
		}
		if st := r.status(t, "default"); st.State != StatePending || st.Reason != "the authority is away" {
			t.Errorf("before there is one: %s (%s)", st.State, st.Reason)
		}

		r.Assign("default", inlinePair(first), nil)
		a := in.next(100 * time.Millisecond)
		if a.name != "default" || a.secret.GetName() != "default" || chainOf(a) != string(first.CertPEM) {
			t.Fatalf("got %q", a.name)
		}
		if why := r.Waiting("default"); why != "envoy has not accepted it yet" {
			t.Errorf("on its way: %q", why)
		}
		in.ack(a)
		synctest.Wait()
		if why := r.Waiting("default"); why != "" {
			t.Errorf("served: %q", why)
		}
		if st := r.status(t, "default"); st.State != StateOK || st.NotAfter.IsZero() {
			t.Errorf("served: %s (%s)", st.State, st.Reason)
		}

		r.Assign("default", nil, errors.New("renewal fails"))
		r.Assign("default", inlinePair(first), errors.New("renewal fails"))
		in.silence(time.Minute)
		if st := r.status(t, "default"); st.State != StateDegraded || st.Reason != "renewal fails" {
			t.Errorf("with a remark: %s (%s)", st.State, st.Reason)
		}
		if log := r.log.String(); strings.Contains(log, "renewal fails") || strings.Contains(log, "authority is away") {
			t.Error("the log has a remark, which its source logs")
		}

		broken := inlinePair(second)
		broken.GetTlsCertificate().PrivateKey = inlineSource(first.KeyPEM)
		r.Assign("default", broken, nil)
		in.silence(time.Minute)
		if st := r.status(t, "default"); st.State != StateDegraded || !strings.Contains(st.Reason, "does not match") {
			t.Errorf("with a pair that does not match: %s (%s)", st.State, st.Reason)
		}

		r.SetNamed([]*tlsv3.Secret{{Name: "default", Type: inlinePair(second).Type}})
		in.silence(time.Minute)
		if !strings.Contains(r.log.String(), "choose another name") {
			t.Error("nobody is told that the configuration's secret is not used")
		}
		r.SetNamed(nil)
		in.silence(time.Minute)

		cert, key := second.Write(t, t.TempDir())
		files := &tlsv3.Secret{Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: fileSource(cert), PrivateKey: fileSource(key)}}}
		r.Assign("default", files, nil)
		if a := in.next(time.Second); chainOf(a) != string(second.CertPEM) {
			t.Error("assigned files are not served")
		}
		in.close()
		time.Sleep(linger + time.Minute)
		if st := r.status(t, "default"); st.State != StateOK {
			t.Errorf("long after the last stream: %s (%s), want kept", st.State, st.Reason)
		}
	})
}
