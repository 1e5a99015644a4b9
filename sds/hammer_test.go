package sds

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

// Streams of both protocols come and go, files and configuration change, status and metrics are read: whatever a client gets
// is a pair that matches, and in the end everybody who stayed has the last one.
func TestHammer(t *testing.T) {
	ca := testca.New(t, "ca")
	const secrets = 4
	var files []string
	dirs := make([]string, secrets)
	for i := range dirs {
		dirs[i] = t.TempDir()
		name, _ := pairIn(t, ca, dirs[i])
		files = append(files, name)
	}
	pairs := make([]testca.Pair, 8)
	for i := range pairs {
		pairs[i] = ca.Issue(t, testca.Leaf{})
	}
	r := newServerRig(t, Config{Poll: 20 * time.Millisecond, Wait: 50 * time.Millisecond})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r.Server)
	names := append([]string{"named", rootPrefix + "/none"}, files...)

	end := time.Now().Add(1500 * time.Millisecond)
	var wg sync.WaitGroup
	busy := func(f func(n int)) {
		wg.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				f(n)
			}
		})
	}
	busy(func(n int) {
		p := pairs[rand.IntN(len(pairs))]
		dir := dirs[n%secrets]
		switch rand.IntN(4) {
		case 0:
			_ = os.WriteFile(filepath.Join(dir, "tls.crt"), p.CertPEM, 0o600) // mismatched for a while
			time.Sleep(10 * time.Millisecond)
			_ = os.WriteFile(filepath.Join(dir, "tls.key"), p.KeyPEM, 0o600)
		case 1:
			_ = os.Remove(filepath.Join(dir, "tls.key"))
		default:
			_ = os.WriteFile(filepath.Join(dir, "tls.key"), p.KeyPEM, 0o600)
			_ = os.WriteFile(filepath.Join(dir, "tls.crt"), p.CertPEM, 0o600)
		}
	})
	busy(func(n int) {
		p := pairs[n%len(pairs)]
		var set []*tlsv3.Secret
		if n%3 > 0 {
			set = append(set, &tlsv3.Secret{Name: "named", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
				CertificateChain: inlineSource(p.CertPEM), PrivateKey: inlineSource(p.KeyPEM),
			}}})
		}
		r.SetNamed(set)
		time.Sleep(5 * time.Millisecond)
	})
	busy(func(int) {
		r.Status()
		if _, err := registry.Gather(); err != nil {
			t.Errorf("Gather: %v", err)
		}
	})
	for i := range 6 {
		busy(func(n int) { hammerSession(t, r, []string{"sotw", "delta"}[i%2], names) })
	}
	wg.Wait()

	for i, dir := range dirs {
		p := pairs[i]
		p.Write(t, dir)
		in := newInbox(t, r, "delta", nil)
		in.subscribe(files[i])
		for a := in.next(5 * time.Second); chainOf(a) != string(p.CertPEM); a = in.next(5 * time.Second) {
			in.ack(a)
		}
		in.close()
	}
	for start := time.Now(); metric(t, r.Server, "gateway_agent_sds_streams") != 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 5*time.Second {
			t.Fatal("streams are left after all clients went")
		}
	}
}

func hammerSession(t *testing.T, r *rig, protocol string, names []string) {
	s := openSession(t, r, protocol, nil)
	stop := time.AfterFunc(time.Duration(rand.IntN(200))*time.Millisecond, s.close)
	defer stop.Stop()
	defer s.close()
	pick := rand.Perm(len(names))[:1+rand.IntN(len(names))]
	for _, i := range pick {
		if err := trySubscribe(s, names[i]); err != nil {
			return
		}
	}
	for {
		a, err := s.recv()
		if err != nil {
			return
		}
		if c := a.secret.GetTlsCertificate(); c != nil {
			if _, err := build(a.secret, nil); err != nil {
				t.Errorf("pushed %s: %v", a.name, err)
			}
		}
		if tryAnswer(s, a) != nil {
			return
		}
	}
}

// The stream may end at any moment, so sending may fail.
func trySubscribe(s session, name string) error {
	switch s := s.(type) {
	case *sotwSession:
		s.names = append(s.names, name)
		return s.stream.Send(sotwRequest(s, nil))
	case *deltaSession:
		return s.stream.Send(deltaRequest(name, nil))
	}
	return fmt.Errorf("unknown session %T", s)
}

func tryAnswer(s session, a answer) error {
	switch s := s.(type) {
	case *sotwSession:
		return s.stream.Send(sotwRequest(s, &a))
	case *deltaSession:
		return s.stream.Send(deltaRequest("", &a))
	}
	return fmt.Errorf("unknown session %T", s)
}
