package dns

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

func TestAnswers(t *testing.T) {
	upstream := newOther(t, nil)
	r := newRig(t, Config{ResolvConf: resolvFile(t, "ingress.svc.cluster.local svc.cluster.local cluster.local", upstream.address)})
	for _, tt := range []struct {
		name string
		kind uint16
		want string
	}{
		{"web.ingress.svc.cluster.local.", dns.TypeA, "NOERROR, web.ingress.svc.cluster.local. A 10.0.0.1"},
		{"WEB.Ingress.", dns.TypeA, "NOERROR, WEB.Ingress. A 10.0.0.1"},
		{"web.ingress.svc.cluster.local.", dns.TypeAAAA, "NOERROR"},
		{"six.example.com.", dns.TypeAAAA, "NOERROR, six.example.com. AAAA 2001:db8::6"},
		{"six.example.com.", dns.TypeA, "NOERROR"},
		{"a.wild.example.com.", dns.TypeA, "NOERROR, a.wild.example.com. A 240.240.0.3"},
		{"mysql-0.mysql.shop.svc.cluster.local.", dns.TypeA, "NOERROR, mysql-0.mysql.shop.svc.cluster.local. A 10.1.0.1"},
		{
			"six.example.com.ingress.svc.cluster.local.", dns.TypeAAAA,
			"NOERROR, six.example.com.ingress.svc.cluster.local. CNAME six.example.com., six.example.com. AAAA 2001:db8::6",
		},
		{"six.example.com.ingress.svc.cluster.local.", dns.TypeA, "NOERROR"},
		{
			"a.wild.example.com.ingress.svc.cluster.local.", dns.TypeA,
			"NOERROR, a.wild.example.com.ingress.svc.cluster.local. CNAME a.wild.example.com., a.wild.example.com. A 240.240.0.3",
		},
		{"web.ingress.svc.cluster.local.", dns.TypeMX, "NOERROR"}, // others say that there is no such name
		{"out.example.", dns.TypeA, "NOERROR, out.example. A 192.0.2.1"},
		{"nowhere.example.", dns.TypeA, "NXDOMAIN"},
		{"bad.example.com.", dns.TypeA, "NXDOMAIN"},
	} {
		for _, network := range []string{"udp", "tcp"} {
			answer := r.ask(network, question(tt.name, tt.kind))
			if got := text(answer); got != tt.want {
				t.Errorf("%s %s over %s: %s; want %s", tt.name, dns.TypeToString[tt.kind], network, got, tt.want)
			}
			for _, record := range answer.Answer {
				if ttl := record.Header().Ttl; ttl != 30 && tt.name != "out.example." {
					t.Errorf("%s: TTL %d, want 30", tt.name, ttl)
				}
			}
		}
	}
	want := []string{
		"udp web.ingress.svc.cluster.local.", "tcp web.ingress.svc.cluster.local.", "udp out.example.", "tcp out.example.",
		"udp nowhere.example.", "tcp nowhere.example.", "udp bad.example.com.", "tcp bad.example.com.",
	}
	if diff := cmp.Diff(want, upstream.questions()); diff != "" {
		t.Errorf("asked elsewhere (-want +got):\n%s", diff)
	}
}

// A resolver that is neither ours nor the library's.
func TestGoResolver(t *testing.T) {
	r := newRig(t, Config{ResolvConf: resolvFile(t, "", newOther(t, nil).address)})
	for _, network := range []string{"udp", "tcp"} {
		resolver := &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, r.address)
		}}
		for name, want := range map[string]string{
			"db.shop.svc.cluster.local.":                   "[10.0.0.2 fd00::2]",
			"web.ingress.":                                 "[10.0.0.1]",
			"six.example.com.":                             "[2001:db8::6]",
			"api.example.com.":                             "[240.240.0.1 240.240.0.2]",
			"out.example.":                                 "[192.0.2.1]",
			"x.deep.wild.example.com.":                     "[240.240.0.4]",
			"nowhere.example.":                             "no such host",
			"mapped.example.com.":                          "[10.0.0.12]",
			"web.ingress.svc.cluster.local.cluster.local.": "no such host",
		} {
			addresses, err := resolver.LookupHost(t.Context(), name)
			slices.Sort(addresses)
			got := fmt.Sprint(addresses)
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, want) {
				t.Errorf("%s over %s: %s, want %s", name, network, got, want)
			}
		}
	}
}

func TestOddQueries(t *testing.T) {
	r := newRig(t, Config{ResolvConf: resolvFile(t, "", newOther(t, nil).address)})
	two := question("web.ingress.", dns.TypeA)
	two.Question = append(two.Question, two.Question[0])
	notify := new(dns.Msg).SetNotify("web.ingress.")
	version := question("web.ingress.", dns.TypeA).SetEdns0(1232, true)
	version.IsEdns0().SetVersion(1)
	chaos := question("out.example.", dns.TypeA)
	chaos.Question[0].Qclass = dns.ClassCHAOS
	for name, tt := range map[string]struct {
		query *dns.Msg
		want  int
	}{
		"two questions":    {two, dns.RcodeFormatError},
		"notify":           {notify, dns.RcodeNotImplemented},
		"future EDNS":      {version, dns.RcodeBadVers},
		"transfer":         {question("web.ingress.", dns.TypeAXFR), dns.RcodeRefused},
		"another class":    {chaos, dns.RcodeSuccess},
		"the root":         {question(".", dns.TypeNS), dns.RcodeNameError},
		"escapes and dots": {question(`a\.b\000.web.ingress.`, dns.TypeA), dns.RcodeNameError},
	} {
		if answer := r.ask("tcp", tt.query); answer.Rcode != tt.want || !answer.Response || answer.Id != tt.query.Id {
			t.Errorf("%s: %v, want code %d", name, answer, tt.want)
		}
	}
	for _, size := range []uint16{0, 512, 1232, 65535} {
		answer := r.ask("udp", question("web.ingress.", dns.TypeA).SetEdns0(size, true))
		if opt := answer.IsEdns0(); opt == nil || !opt.Do() || opt.UDPSize() != maxUDP || !answer.Authoritative || !answer.RecursionAvailable {
			t.Errorf("an answer to EDNS0 with %d bytes: %v", size, answer)
		}
	}
	large := question("web.ingress.", dns.TypeA).SetEdns0(1232, true)
	large.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, 1000)}}
	if answer := r.ask("udp", large); text(answer) != "NOERROR, web.ingress. A 10.0.0.1" {
		t.Errorf("an answer to 1000 bytes of padding: %v", answer)
	}
	if answer := r.ask("udp", question("web.ingress.", dns.TypeA)); answer.IsEdns0() != nil {
		t.Errorf("EDNS0 to who does not know it: %v", answer)
	}
}

// What does not fit is cut, and the client asks again over TCP.
func TestTruncation(t *testing.T) {
	long := make([]dns.RR, 100)
	for i := range long {
		long[i] = &dns.A{Hdr: header("long.example.", dns.TypeA), A: net.IPv4(192, 0, 2, byte(i))}
	}
	upstream := newOther(t, func(network string, query, answer *dns.Msg) bool {
		if query.Question[0].Name == "long.example." {
			answer.Rcode, answer.Answer = dns.RcodeSuccess, long
			if network == "udp" {
				answer.Truncate(512)
			}
		}
		return true
	})
	r := newRig(t, Config{ResolvConf: resolvFile(t, "", upstream.address)})
	many := service("many", "shop")
	for i := range 100 {
		many.IPs = append(many.IPs, fmt.Sprintf("10.2.0.%d", i))
	}
	if err := r.Update(resources(map[string]*nameInfo{"many.shop.svc.cluster.local": many})); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"long.example.", "many.shop.svc.cluster.local."} {
		short := r.ask("udp", question(name, dns.TypeA))
		short.Compress = true // as it came
		if !short.Truncated || len(short.Answer) == 0 || short.Len() > 512 {
			t.Errorf("%s over UDP: %d records in %d bytes, truncated %v", name, len(short.Answer), short.Len(), short.Truncated)
		}
		if answer := r.ask("tcp", question(name, dns.TypeA)); answer.Truncated || len(answer.Answer) != 100 {
			t.Errorf("%s over TCP: %d records, truncated %v", name, len(answer.Answer), answer.Truncated)
		}
	}
	if answer := r.ask("udp", question("many.shop.svc.cluster.local.", dns.TypeA).SetEdns0(4096, false)); len(answer.Answer) != 100 {
		t.Errorf("over UDP with EDNS0: %d records, want all", len(answer.Answer))
	}
	first := text(r.ask("tcp", question("many.shop.svc.cluster.local.", dns.TypeA)))
	if second := text(r.ask("tcp", question("many.shop.svc.cluster.local.", dns.TypeA))); first == second {
		t.Error("two answers have the same order")
	}
}

// Who asks before there is a table waits for it, but not for ever; in a bubble, where nothing but the time moves.
func TestWaitForTheFirstTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{MaxForwards: 2, ResolvConf: "/nowhere"})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(name string) <-chan string {
			answer := make(chan string, 1) // the only one
			go func() { answer <- text(s.respond(t.Context(), question(name, dns.TypeA), "udp")) }()
			synctest.Wait()
			return answer
		}
		begin := time.Now()
		if got := <-ask("api.example.com."); got != "SERVFAIL" || time.Since(begin) != defaultHold {
			t.Errorf("without a table: %s after %v, want SERVFAIL after %v", got, time.Since(begin), defaultHold)
		}
		one, two := ask("api.example.com."), ask("six.example.com.")
		begin = time.Now()
		if got := <-ask("api.example.com."); got != "SERVFAIL" || time.Since(begin) != 0 {
			t.Errorf("one more than may wait: %s after %v, want SERVFAIL at once", got, time.Since(begin))
		}
		if err := s.Update(resources(map[string]*nameInfo{"api.example.com": entry("240.240.0.1"), "six.example.com": entry("::6")})); err != nil {
			t.Fatal(err)
		}
		if a, b := <-one, <-two; a != "NOERROR, api.example.com. A 240.240.0.1" || b != "NOERROR" || time.Since(begin) != 0 {
			t.Errorf("with the table: %s, %s, after %v", a, b, time.Since(begin))
		}
	})
}

func TestBeforeTheFirstTable(t *testing.T) {
	for _, early := range []bool{false, true} {
		r := newEmptyRig(t, Config{Early: early, ResolvConf: resolvFile(t, "", newOther(t, nil).address), Hold: time.Nanosecond})
		want := "SERVFAIL"
		if early {
			want = "NOERROR, out.example. A 192.0.2.1"
		}
		if got := text(r.ask("udp", question("out.example.", dns.TypeA))); got != want {
			t.Errorf("early %v: %s, want %s", early, got, want)
		}
	}
}

// The end does not wait for others: a name server that says nothing, a client that reads nothing, one that sends nothing.
func TestServeEnds(t *testing.T) {
	asked := make(chan struct{}, 1)
	upstream := newOther(t, func(string, *dns.Msg, *dns.Msg) bool {
		asked <- struct{}{}
		return false
	})
	r := newRig(t, Config{Timeout: time.Hour, ResolvConf: resolvFile(t, "", upstream.address)})
	many := entry()
	for i := range 3000 {
		many.IPs = append(many.IPs, fmt.Sprintf("10.2.%d.%d", i>>8, i&255))
	}
	if err := r.Update(resources(map[string]*nameInfo{"many.example": many})); err != nil {
		t.Fatal(err)
	}
	silent, deaf := r.dial("tcp"), r.dial("tcp")
	data, err := question("many.example.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	frame := append(binary.BigEndian.AppendUint16(nil, uint16(len(data))), data...)
	for deaf.SetWriteDeadline(time.Now().Add(500*time.Millisecond)) == nil { // until the server reads no more because it cannot write
		if _, err := deaf.Write(frame); err != nil {
			break
		}
	}
	lost, err := question("lost.example.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.dial("udp").Write(lost); err != nil {
		t.Fatal(err)
	}
	<-asked
	begin := time.Now()
	if err := r.stop(); err != nil {
		t.Errorf("Serve = %v, want nil", err)
	}
	if took := time.Since(begin); took > writeTimeout+5*time.Second {
		t.Errorf("the end took %v", took)
	}
	if _, err := io.Copy(io.Discard, silent); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("a connection is open yet: %v", err)
	}
	if _, err := net.Dial("tcp", r.address); err == nil {
		t.Error("it listens yet")
	}
}

func (r *rig) dial(network string) net.Conn {
	r.t.Helper()
	c, err := net.Dial(network, r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

// An end that nobody asked for is an error.
func TestServeFails(t *testing.T) {
	for _, which := range []string{"udp", "tcp"} {
		s, err := New(Config{ResolvConf: resolvFile(t, "", "127.0.0.1")})
		if err != nil {
			t.Fatal(err)
		}
		tcp, udp := sockets(t)
		if which == "udp" {
			udp.Close()
		} else {
			tcp.Close()
		}
		if err := s.Serve(t.Context(), udp, tcp); err == nil || !strings.Contains(err.Error(), "name server on 127.0.0.1:") {
			t.Errorf("without %s: Serve = %v, want an error", which, err)
		}
	}
}

func TestMetricsAndStatus(t *testing.T) {
	upstream := newOther(t, func(_ string, query, _ *dns.Msg) bool { return query.Question[0].Name == "out.example." })
	r := newRig(t, Config{Timeout: 50 * time.Millisecond, ResolvConf: resolvFile(t, "a.b C.D", upstream.address, r0)})
	for _, name := range []string{"web.", "out.example.", "lost.example."} {
		r.ask("udp", question(name, dns.TypeA))
	}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(r.Server); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		m := family.GetMetric()[0]
		name := strings.TrimPrefix(family.GetName(), "gateway_agent_dns_")
		got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	want := map[string]float64{
		"requests_total": 3, "upstream_requests_total": 2, "upstream_failures_total": 1, "upstream_request_duration_seconds": 2, "hosts": float64(len(mesh())),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	status := r.Status()
	if !slices.Equal(status.Addresses, []string{r.address}) || !slices.Equal(status.Servers, []string{upstream.address}) || status.Search != "a.b." ||
		status.Hosts != len(mesh()) || status.Unusable != 4 || status.Error != "" || status.ReceivedAt.IsZero() {
		t.Errorf("status %+v", status)
	}
}

const r0 = "not-an-address"
