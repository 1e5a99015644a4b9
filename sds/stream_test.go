package sds

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

var pollOnly = Config{PollOnly: true}

// each runs a test in a bubble for both protocols.
func each(t *testing.T, test func(t *testing.T, protocol string)) {
	for _, protocol := range []string{"sotw", "delta"} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, protocol) })
		})
	}
}

// pairIn writes a new pair and returns the name of its secret.
func pairIn(t *testing.T, ca *testca.CA, dir string) (string, testca.Pair) {
	t.Helper()
	p := ca.Issue(t, testca.Leaf{})
	cert, key := p.Write(t, dir)
	return certPrefix + cert + "~" + key, p
}

func (r *rig) status(t *testing.T, name string) SecretStatus {
	t.Helper()
	for _, st := range r.Status() {
		if st.Name == name {
			return st
		}
	}
	t.Fatalf("status has no %s", name)
	return SecretStatus{}
}

// subscription is a Server with a pair on disk, and a stream that has asked for it.
type subscription struct {
	*rig
	*inbox
	ca   *testca.CA
	dir  string
	name string      // of the secret
	pair testca.Pair // the first one
}

func subscribed(t *testing.T, protocol string, cfg Config) *subscription {
	t.Helper()
	s := &subscription{ca: testca.New(t, "ca"), dir: t.TempDir()}
	s.name, s.pair = pairIn(t, s.ca, s.dir)
	s.rig = newServerRig(t, cfg)
	s.inbox = newInbox(t, s.rig, protocol, nil)
	s.subscribe(s.name)
	return s
}

// rotate writes another pair over the first one.
func (s *subscription) rotate(t *testing.T) testca.Pair {
	t.Helper()
	_, p := pairIn(t, s.ca, s.dir)
	return p
}

func chainOf(a answer) string {
	return string(a.secret.GetTlsCertificate().GetCertificateChain().GetInlineBytes())
}

func TestPushAndRotate(t *testing.T) {
	each(t, func(t *testing.T, protocol string) {
		s := subscribed(t, protocol, pollOnly)
		a := s.next(time.Second)
		if a.name != s.name || chainOf(a) != string(s.pair.CertPEM) {
			t.Fatalf("first answer is %s with %q", a.name, chainOf(a))
		}
		s.ack(a)
		s.silence(10 * time.Minute)
		second := s.rotate(t)
		b := s.next(2 * time.Second)
		if chainOf(b) != string(second.CertPEM) || b.version == a.version || b.nonce == a.nonce {
			t.Errorf("after rotation: version %q→%q nonce %q→%q", a.version, b.version, a.nonce, b.nonce)
		}
		s.ack(b)
		s.silence(10 * time.Minute)
		st := s.status(t, s.name)
		if st.State != StateOK || st.Streams != 1 || st.Serial != serialOf(second.Cert) || st.SHA256 != fingerprint(second.Cert) || st.LastPush.IsZero() || len(st.Files) != 2 {
			t.Errorf("status: %+v", st)
		}
	})
}

// A rejected secret is told in the status, is not sent again, and does not hinder the next one.
func TestRejection(t *testing.T) {
	each(t, func(t *testing.T, protocol string) {
		s := subscribed(t, protocol, pollOnly)
		s.nack(s.next(time.Second), "KEY_VALUES_MISMATCH")
		s.silence(10 * time.Minute)
		if st := s.status(t, s.name); st.State != StateRejected || !strings.Contains(st.Reason, "KEY_VALUES_MISMATCH") {
			t.Errorf("status after NACK: %s (%s)", st.State, st.Reason)
		}
		s.rotate(t)
		s.ack(s.next(2 * time.Second))
		s.silence(time.Minute)
		if st := s.status(t, s.name); st.State != StateOK {
			t.Errorf("status after the next ACK: %s (%s)", st.State, st.Reason)
		}
		if got := metric(t, s.Server, "gateway_agent_sds_rejects_total"); got != 1 {
			t.Errorf("rejects_total %v, want 1", got)
		}
	})
}

// A verdict on an overtaken answer says nothing about the newer one.
func TestStaleVerdict(t *testing.T) {
	each(t, func(t *testing.T, protocol string) {
		s := subscribed(t, protocol, pollOnly)
		old := s.next(time.Second)
		s.rotate(t)
		s.next(2 * time.Second) // not held back by the missing verdict
		s.nack(old, "old news")
		s.nack(answer{nonce: "nonsense"}, "what")
		s.silence(10 * time.Minute)
		if st := s.status(t, s.name); st.State != StateOK {
			t.Errorf("status: %s (%s), want the newer one not blamed", st.State, st.Reason)
		}
	})
}

func TestMissingIsToldOnce(t *testing.T) {
	each(t, func(t *testing.T, protocol string) {
		ca, dir := testca.New(t, "ca"), t.TempDir()
		good, _ := pairIn(t, ca, dir)
		gone := certPrefix + dir + "/none.crt~" + dir + "/tls.key"
		r := newServerRig(t, pollOnly)
		in := newInbox(t, r, protocol, nil)
		start := time.Now()
		in.subscribe(gone, good)
		a := in.next(time.Second)
		if a.name != good {
			t.Fatalf("first answer is for %q, want the good one at once", a.name)
		}
		in.ack(a)
		refused := in.next(3 * time.Second)
		if took := time.Since(start); took != 2*time.Second || refused.secret != nil {
			t.Errorf("refused after %v (%v), want after 2 s", took, refused)
		}
		if protocol == "sotw" && !strings.Contains(refused.refusal, dir+"/none.crt does not exist: create it") {
			t.Errorf("refusal %q does not name the file", refused.refusal)
		}
		if protocol == "delta" && refused.name != gone {
			t.Errorf("removed %q, want %q", refused.name, gone)
		}
		in.nack(refused, "Unable to unpack")
		in.silence(10 * time.Minute)
		if st := r.status(t, gone); st.State != StatePending || !strings.Contains(st.Reason, "none.crt does not exist") {
			t.Errorf("status: %s (%s)", st.State, st.Reason)
		}
		if got := metric(t, r.Server, "gateway_agent_sds_rejects_total"); got != 0 {
			t.Errorf("rejects_total %v: a refusal is no secret that was rejected", got)
		}
		if err := os.Rename(dir+"/tls.crt", dir+"/none.crt"); err != nil {
			t.Fatal(err)
		}
		if b := in.next(2 * time.Second); b.name != gone {
			t.Errorf("got %q, want the secret as soon as its file is there", b.name)
		}
		in.silence(10 * time.Minute)
		if st := r.status(t, good); st.State != StateDegraded || !strings.Contains(st.Reason, "tls.crt does not exist") || st.Serial == "" {
			t.Errorf("the other, which lost its file: %s (%s)", st.State, st.Reason)
		}
	})
}

// A client that already has the secret waits for nothing: after a restart of the agent without the files it is left alone.
func TestMissingIsNotToldToWhoHasIt(t *testing.T) {
	each(t, func(t *testing.T, protocol string) {
		r := newServerRig(t, pollOnly)
		name := rootPrefix + filepath.Join(t.TempDir(), "ca.pem")
		in := newInbox(t, r, protocol, map[string]string{name: "before/7"})
		in.subscribe(name)
		in.silence(10 * time.Minute)
	})
}

func TestReconnect(t *testing.T) {
	each(t, func(t *testing.T, protocol string) {
		s := subscribed(t, protocol, pollOnly)
		a := s.next(time.Second)
		s.ack(a)
		s.close()
		synctest.Wait()
		if err := os.WriteFile(s.dir+"/tls.crt", []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute) // without streams the last good one is remembered
		again := newInbox(t, s.rig, protocol, map[string]string{s.name: a.version})
		again.subscribe(s.name)
		if protocol == "delta" {
			again.silence(10 * time.Minute) // it has this version
		} else if b := again.next(time.Second); chainOf(b) != string(s.pair.CertPEM) || b.version != a.version {
			t.Errorf("after reconnect: version %q, want %q and the same content", b.version, a.version)
		}
		again.close()
		time.Sleep(linger + 2*time.Minute)
		if got := s.Status(); len(got) != 0 {
			t.Errorf("after a long time without streams: %+v, want forgotten", got)
		}
	})
}

func TestUnsubscribe(t *testing.T) {
	each(t, func(t *testing.T, protocol string) {
		ca, dir, dir2 := testca.New(t, "ca"), t.TempDir(), t.TempDir()
		name, _ := pairIn(t, ca, dir)
		other, _ := pairIn(t, ca, dir2)
		r := newServerRig(t, pollOnly)
		in := newInbox(t, r, protocol, nil)
		in.subscribe(name, other)
		in.ack(in.next(time.Second))
		in.ack(in.next(time.Second))
		in.unsubscribe(name)
		synctest.Wait()
		pairIn(t, ca, dir)
		in.silence(time.Minute)
		pairIn(t, ca, dir2)
		if a := in.next(2 * time.Second); a.name != other {
			t.Errorf("got %q, want %q", a.name, other)
		}
		if st := r.status(t, name); st.Streams != 0 {
			t.Errorf("streams %d after unsubscribe", st.Streams)
		}
	})
}

func TestDeltaSubscribeAgainIsAnsweredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subscribed(t, "delta", pollOnly)
		a := s.next(time.Second)
		s.ack(a)
		s.silence(time.Minute)
		s.subscribe(s.name)
		if b := s.next(time.Second); b.version != a.version {
			t.Errorf("version %q, want %q again", b.version, a.version)
		}
	})
}

func TestExpiryWhileServed(t *testing.T) {
	each(t, func(t *testing.T, protocol string) {
		s := subscribed(t, protocol, Config{PollOnly: true, Poll: time.Minute}) // the pair is valid for a day
		s.ack(s.next(time.Second))
		time.Sleep(25 * time.Hour)
		if st := s.status(t, s.name); st.State != StateExpired || !strings.Contains(st.Reason, "has expired at") {
			t.Errorf("status: %s (%s)", st.State, st.Reason)
		}
		if got := metric(t, s.Server, "gateway_agent_cert_expiry_seconds"); got >= 0 {
			t.Errorf("cert_expiry_seconds %v, want negative", got)
		}
		if got := strings.Count(s.log.String(), "nears its end"); got != 3 {
			t.Errorf("%d warnings before the end, want 3 (20 %%, 5 %%, the end)", got)
		}
		old := s.ca.Issue(t, testca.Leaf{NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(time.Hour)})
		old.Write(t, s.dir)
		s.ack(s.next(2 * time.Minute))
		expired := s.ca.Issue(t, testca.Leaf{NotAfter: time.Now().Add(-time.Minute)})
		expired.Write(t, s.dir)
		s.silence(50 * time.Minute)
		if st := s.status(t, s.name); st.State != StateDegraded || !strings.Contains(st.Reason, "is kept") {
			t.Errorf("expired over valid: %s (%s)", st.State, st.Reason)
		}
	})
}

func TestWrongType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newServerRig(t, pollOnly)
		for _, protocol := range []string{"sotw", "delta", "fetch"} {
			var err error
			const cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
			switch protocol {
			case "sotw":
				stream, _ := r.client.StreamSecrets(t.Context())
				_ = stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: cluster})
				_, err = stream.Recv()
			case "delta":
				stream, _ := r.client.DeltaSecrets(t.Context())
				_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cluster})
				_, err = stream.Recv()
			case "fetch":
				_, err = r.client.FetchSecrets(t.Context(), &discoveryv3.DiscoveryRequest{TypeUrl: cluster})
			}
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s of clusters: %v, want InvalidArgument", protocol, err)
			}
		}
		time.Sleep(time.Second)
		if got := metric(t, r.Server, "gateway_agent_sds_streams"); got != 0 {
			t.Errorf("streams %v after all ended", got)
		}
	})
}

func TestFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		name, _ := pairIn(t, testca.New(t, "ca"), dir)
		gone := rootPrefix + dir + "/none.pem"
		r := newServerRig(t, pollOnly)
		resp, err := r.client.FetchSecrets(t.Context(), &discoveryv3.DiscoveryRequest{ResourceNames: []string{gone, name}})
		if err != nil || len(resp.GetResources()) != 1 || resp.GetVersionInfo() == "" {
			t.Errorf("fetch of one good, one missing: %d resources, %v", len(resp.GetResources()), err)
		}
		_, err = r.client.FetchSecrets(t.Context(), &discoveryv3.DiscoveryRequest{ResourceNames: []string{gone}})
		if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "none.pem does not exist") {
			t.Errorf("fetch of a missing one: %v, want NotFound and the file", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.client.FetchSecrets(ctx, &discoveryv3.DiscoveryRequest{ResourceNames: []string{rootPrefix + "/nowhere"}}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("fetch with a deadline before Wait: %v", err)
		}
	})
}

func TestTooManyNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newServerRig(t, pollOnly)
		stream, err := r.client.DeltaSecrets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: make([]string, maxSecrets+1)})
		if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%d names: %v, want ResourceExhausted", maxSecrets+1, err)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	_, err := New(Config{Deny: []string{"relative", "./x"}, Poll: -1})
	for _, want := range []string{`"relative"`, `"./x"`, "-1ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v, want %s named", err, want)
		}
	}
}

// Keys are nowhere but in what Envoy gets.
func TestNoKeyInLogOrStatus(t *testing.T) {
	each(t, func(t *testing.T, protocol string) {
		s := subscribed(t, protocol, pollOnly)
		s.nack(s.next(time.Second), "goo.gle/debugstr inline_bytes: \""+string(s.pair.KeyPEM)+"\"")
		time.Sleep(time.Minute)
		for i, data := range [][]byte{append([]byte("x"), s.pair.KeyPEM...), s.pair.KeyPEM[:60], []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")} {
			if err := os.WriteFile(s.dir+"/tls.key", data, 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			if st := s.status(t, s.name); i > 0 && !strings.Contains(st.Reason, "tls.key") {
				t.Errorf("damaged key %d: %s (%s)", i, st.State, st.Reason)
			}
		}
		secret := strings.Split(string(s.pair.KeyPEM), "\n")[1]
		for what, text := range map[string]string{"log": s.log.String(), "status": s.status(t, s.name).Reason} {
			if strings.Contains(text, secret[:20]) || strings.Contains(text, "BEGIN") {
				t.Errorf("%s holds the key:\n%s", what, text)
			}
		}
	})
}
