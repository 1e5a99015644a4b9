package dns

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

var discard = slog.New(slog.DiscardHandler)

func mustServer(t *testing.T, text string) netip.AddrPort {
	t.Helper()
	server, err := parseServer(text)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// other is another name server, over UDP and TCP on one port. It knows out.example.
type other struct {
	address string
	answer  func(network string, query, answer *dns.Msg) bool // false: it says nothing

	mu    sync.Mutex
	asked []string // network and name
}

func newOther(t *testing.T, answer func(network string, query, answer *dns.Msg) bool) *other {
	t.Helper()
	o := &other{answer: answer}
	tcp, udp := sockets(t)
	o.address = tcp.Addr().String()
	servers := []*dns.Server{{PacketConn: udp, Handler: o.handler("udp")}, {Listener: tcp, Handler: o.handler("tcp")}}
	for _, server := range servers {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		ended := make(chan error, 1)
		go func() { ended <- server.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			_ = server.Shutdown()
			<-ended
		})
	}
	return o
}

// sockets are of one free port.
func sockets(t *testing.T) (net.Listener, net.PacketConn) {
	t.Helper()
	var last error
	for range 20 {
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		udp, err := net.ListenPacket("udp", tcp.Addr().String())
		if err == nil {
			return tcp, udp
		}
		tcp.Close()
		last = err
	}
	t.Fatal(last)
	return nil, nil
}

func (o *other) handler(network string) dns.Handler {
	return dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		o.mu.Lock()
		o.asked = append(o.asked, network+" "+query.Question[0].Name)
		o.mu.Unlock()
		answer := new(dns.Msg).SetReply(query)
		switch question := query.Question[0]; {
		case !strings.EqualFold(question.Name, "out.example."):
			answer.Rcode = dns.RcodeNameError
		case question.Qtype == dns.TypeA:
			answer.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 7}, A: net.IPv4(192, 0, 2, 1)}}
		}
		if o.answer == nil || o.answer(network, query, answer) {
			_ = w.WriteMsg(answer)
		}
	})
}

func (o *other) questions() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.asked...)
}

// resolvFile names servers, and search domains.
func resolvFile(t *testing.T, search string, servers ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	text := "# of a test\noptions ndots:5\n"
	if search != "" {
		text += "search " + search + "\n"
	}
	for _, server := range servers {
		text += "nameserver " + server + "\n"
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// rig is a server of ours on a port of its own, with the table of the mesh.
type rig struct {
	*Server
	t       *testing.T
	address string
	stop    func() error // ends it and says how
}

func newRig(t *testing.T, config Config) *rig {
	t.Helper()
	r := newEmptyRig(t, config)
	if err := r.Update(resources(mesh())); err != nil {
		t.Fatal(err)
	}
	return r
}

// newEmptyRig is one without a table.
func newEmptyRig(t *testing.T, config Config) *rig {
	t.Helper()
	r := &rig{t: t}
	config.Domain = "ingress.svc.cluster.local"
	var err error
	if r.Server, err = New(config); err != nil {
		t.Fatal(err)
	}
	tcp, udp := sockets(t)
	r.address = tcp.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(ctx, udp, tcp) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = r.stop() })
	return r
}

func question(name string, kind uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, kind) }

// ask sends a query as a client does.
func (r *rig) ask(network string, query *dns.Msg) *dns.Msg {
	r.t.Helper()
	client := &dns.Client{Net: network, Timeout: 10 * time.Second}
	answer, _, err := client.ExchangeContext(r.t.Context(), query, r.address)
	if err != nil {
		r.t.Fatalf("%s query for %s: %v", network, query.Question[0].String(), err)
	}
	return answer
}

// text is what an answer says: its code, then name, type and data of each record, sorted by nobody.
func text(answer *dns.Msg) string {
	all := []string{dns.RcodeToString[answer.Rcode]}
	for _, record := range answer.Answer {
		fields := strings.Fields(record.String())
		all = append(all, strings.Join([]string{fields[0], fields[3], fields[4]}, " "))
	}
	return strings.Join(all, ", ")
}
