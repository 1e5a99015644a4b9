package dns

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// Tables change while clients ask.
func TestHammer(t *testing.T) {
	r := newRig(t, Config{ResolvConf: resolvFile(t, "ingress.svc.cluster.local", newOther(t, nil).address)})
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for i := range 2 {
		others.Go(func() {
			for ctx.Err() == nil {
				infos := mesh()
				infos[fmt.Sprintf("host-%d.example.com", i)] = entry("10.9.9.9")
				if err := r.Update(resources(infos)); err != nil {
					t.Error(err)
				}
				r.NameTable()
				r.Status()
			}
		})
	}
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for i := range 50 {
				query, want := question("web.", dns.TypeA), "NOERROR, web. A 10.0.0.1"
				if i%5 == 0 {
					query, want = question("out.example.", dns.TypeA), "NOERROR, out.example. A 192.0.2.1"
				}
				if got := text(r.respond(ctx, query, "udp")); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
		})
	}
	clients.Wait()
	cancel()
	others.Wait()
}

// FuzzQuery: whatever comes, the answer can be sent and is not larger than the client may expect.
func FuzzQuery(f *testing.F) {
	for _, query := range []*dns.Msg{
		question("web.", dns.TypeA), question("a.wild.example.com.", dns.TypeA).SetEdns0(1232, true), question("x.example.", dns.TypeMX),
		question("api.example.com.ingress.svc.cluster.local.", dns.TypeA), new(dns.Msg).SetNotify("."), new(dns.Msg),
	} {
		data, err := query.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	s, err := New(Config{Domain: "ingress.svc.cluster.local", ResolvConf: "/nowhere"})
	if err != nil {
		f.Fatal(err)
	}
	if err := s.Update(resources(mesh())); err != nil {
		f.Fatal(err)
	}
	s.resolv.conf = &resolvConf{search: "ingress.svc.cluster.local."}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, network := range []string{"udp", "tcp"} {
			query := new(dns.Msg)
			if query.Unpack(data) != nil {
				return
			}
			limit := dns.MaxMsgSize
			if network == "udp" {
				limit = maxUDP
				if query.IsEdns0() == nil {
					limit = dns.MinMsgSize
				}
			}
			answer := s.respond(t.Context(), query, network)
			packed, err := answer.Pack()
			if err != nil || len(packed) > limit || answer.Id != query.Id || !answer.Response {
				t.Errorf("the answer to %v over %s has %d bytes, %v: %v", query, network, len(packed), err, answer)
			}
		}
	})
}
