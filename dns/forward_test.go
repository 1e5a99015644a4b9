package dns

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	dto "github.com/prometheus/client_model/go"
)

// refuses is a name server that cannot help.
func refuses(_ string, _, answer *dns.Msg) bool {
	answer.Rcode, answer.Answer = dns.RcodeServerFailure, nil
	return true
}

func silent(string, *dns.Msg, *dns.Msg) bool { return false }

// nobody is an address where no server is.
func nobody(t *testing.T) string {
	tcp, udp := sockets(t)
	udp.Close()
	tcp.Close()
	return tcp.Addr().String()
}

// Whatever the others do, the client has the answer of the one that has it, and one that did not answer is asked last from then on.
func TestOneServerIsEnough(t *testing.T) {
	for name, bad := range map[string]func(t *testing.T) string{
		"refuses":   func(t *testing.T) string { return newOther(t, refuses).address },
		"is silent": func(t *testing.T) string { return newOther(t, silent).address },
		"is away":   nobody,
		"lies": func(t *testing.T) string {
			return newOther(t, func(_ string, _, answer *dns.Msg) bool {
				answer.Question[0].Name = "lie.example."
				return true
			}).address
		},
		"echoes": func(t *testing.T) string {
			return newOther(t, func(_ string, _, answer *dns.Msg) bool {
				answer.Response = false
				return true
			}).address
		},
	} {
		for _, parallel := range []bool{false, true} {
			for _, network := range []string{"udp", "tcp"} {
				t.Run(fmt.Sprint(name, " ", parallel, " ", network), func(t *testing.T) {
					good := newOther(t, nil)
					config := Config{Parallel: parallel, Timeout: 100 * time.Millisecond, ResolvConf: resolvFile(t, "", bad(t), bad(t), good.address)}
					if parallel {
						config.Timeout = time.Hour // nobody waits for the others
					}
					r := newRig(t, config)
					for range 5 {
						if got := text(r.ask(network, question("out.example.", dns.TypeA))); got != "NOERROR, out.example. A 192.0.2.1" {
							t.Fatalf("got %s, want the address", got)
						}
					}
				})
			}
		}
	}
}

// When no server helps, what one of them said is the answer, else SERVFAIL, in time.
func TestNoServerHelps(t *testing.T) {
	for _, parallel := range []bool{false, true} {
		for name, servers := range map[string][]string{
			"refuse":          {newOther(t, refuses).address, newOther(t, refuses).address},
			"are silent":      {newOther(t, silent).address, newOther(t, silent).address},
			"one refuses":     {newOther(t, refuses).address, nobody(t)},
			"there are none":  nil,
			"none of a sense": {"localhost", "10.0.0.1:0", "::1::"},
		} {
			r := newRig(t, Config{Parallel: parallel, Timeout: 50 * time.Millisecond, ResolvConf: resolvFile(t, "", servers...)})
			query := question("out.example.", dns.TypeA)
			if answer := r.ask("udp", query); text(answer) != "SERVFAIL" || answer.Id != query.Id {
				t.Errorf("%s, parallel %v: %v, want SERVFAIL", name, parallel, answer)
			}
			if got := text(r.ask("udp", question("web.", dns.TypeA))); got != "NOERROR, web. A 10.0.0.1" {
				t.Errorf("%s: the table's %s", name, got)
			}
		}
	}
}

// Others' answers come as they are: no such name stays that, and what its client did not ask for it does not get.
func TestForwardedAsItIs(t *testing.T) {
	sizes := make(chan uint16, 10) // more than are sent
	upstream := newOther(t, func(_ string, query, answer *dns.Msg) bool {
		if opt := query.IsEdns0(); opt != nil {
			sizes <- opt.UDPSize()
			answer.SetEdns0(1232, opt.Do())
		}
		answer.Authoritative, answer.AuthenticatedData = true, true
		return true
	})
	r := newRig(t, Config{ResolvConf: resolvFile(t, "", upstream.address)})
	answer := r.ask("udp", question("OUT.example.", dns.TypeA).SetEdns0(65535, true))
	if opt := answer.IsEdns0(); text(answer) != "NOERROR, OUT.example. A 192.0.2.1" || opt == nil || !opt.Do() || !answer.AuthenticatedData || answer.Answer[0].Header().Ttl != 7 {
		t.Errorf("got %v", answer)
	}
	if answer := r.ask("udp", question("out.example.", dns.TypeA)); answer.IsEdns0() != nil {
		t.Errorf("EDNS0 to who does not know it: %v", answer)
	}
	if size := <-sizes; len(sizes) > 0 || size != maxUDP {
		t.Errorf("%d bytes were asked for, and %d times more; want %d once", size, len(sizes), maxUDP)
	}
}

// The number of a query, which a client may take from a counter, is another one for the others.
func TestNumbersAreOurOwn(t *testing.T) {
	numbers := make(chan uint16, 10) // as many as there are queries
	upstream := newOther(t, func(_ string, query, _ *dns.Msg) bool {
		numbers <- query.Id
		return true
	})
	r := newRig(t, Config{ResolvConf: resolvFile(t, "", upstream.address)})
	same := 0
	for id := range uint16(10) {
		query := question("out.example.", dns.TypeA)
		query.Id = id
		r.ask("udp", query)
		if <-numbers == id {
			same++
		}
	}
	if same > 3 {
		t.Errorf("%d of 10 queries kept their numbers", same)
	}
}

// However many queries hang, the table's are answered, and no more than so many hang.
func TestForwardsAreBounded(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	upstream := newOther(t, func(string, *dns.Msg, *dns.Msg) bool {
		asked <- struct{}{}
		<-release
		return true
	})
	r := newRig(t, Config{MaxForwards: 2, Timeout: time.Minute, ResolvConf: resolvFile(t, "", upstream.address)})
	answers := make(chan string, 2)
	for range 2 {
		go func() { answers <- text(r.respond(t.Context(), question("out.example.", dns.TypeA), "udp")) }()
		<-asked
	}
	if got := text(r.ask("udp", question("out.example.", dns.TypeA))); got != "SERVFAIL" {
		t.Errorf("one more: %s, want SERVFAIL", got)
	}
	if got := text(r.ask("udp", question("web.", dns.TypeA))); got != "NOERROR, web. A 10.0.0.1" {
		t.Errorf("the table's: %s", got)
	}
	close(release)
	for range 2 {
		if got := <-answers; got != "NOERROR, out.example. A 192.0.2.1" {
			t.Errorf("got %s, want the address", got)
		}
	}
}

// A resolv.conf that names this server, as on a host whose own resolver it is, does not have it ask itself.
func TestNeverItself(t *testing.T) {
	path := resolvFile(t, "")
	r := newRig(t, Config{ResolvConf: path, Timeout: time.Minute})
	good := newOther(t, nil)
	write := func(servers ...string) {
		t.Helper()
		var text strings.Builder
		for _, server := range servers {
			fmt.Fprintf(&text, "nameserver %s\n", server)
		}
		if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		r.resolv.mu.Lock()
		defer r.resolv.mu.Unlock()
		r.resolv.checked = time.Time{}
	}
	write(r.address)
	if got := text(r.ask("udp", question("out.example.", dns.TypeA))); got != "SERVFAIL" || !strings.Contains(r.Status().Error, "names no other server than this one") {
		t.Errorf("it alone: %s, status %+v", got, r.Status())
	}
	write(r.address, good.address)
	if got := text(r.ask("udp", question("out.example.", dns.TypeA))); got != "NOERROR, out.example. A 192.0.2.1" || r.Status().Error != "" || len(r.Status().Servers) != 1 {
		t.Errorf("it and another: %s, status %+v", got, r.Status())
	}
	if n := r.count(t); n != 2 {
		t.Errorf("%d queries came, want the 2 of the test", n)
	}
}

func (r *rig) count(t *testing.T) int {
	t.Helper()
	m := new(dto.Metric)
	if err := r.metrics.requests.Write(m); err != nil {
		t.Fatal(err)
	}
	return int(m.GetCounter().GetValue())
}

// A server on all addresses is at each of them.
func TestOwnAddresses(t *testing.T) {
	c := newResolv("/nowhere", nil)
	for _, own := range []string{"0.0.0.0:53", "[::]:5353", "127.0.0.2:15053"} {
		c.listens(net.TCPAddrFromAddrPort(mustServer(t, own)))
	}
	for server, want := range map[string]bool{
		"127.0.0.1": true, "127.0.0.53": true, "0.0.0.0": true, "192.0.2.1": false, "127.0.0.1:5353": true, "[::1]:5353": true, "::1": true,
		"127.0.0.2:15053": true, "127.0.0.1:15053": false, "127.0.0.1:54": false, "[::ffff:127.0.0.1]:54": false, "::ffff:127.0.0.1": true,
	} {
		if got := c.isOwn(mustServer(t, server)); got != want {
			t.Errorf("%s is this server: %v, want %v", server, got, want)
		}
	}
}

// resolv.conf is followed, and one that cannot be read leaves what it said.
func TestResolvConfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "resolv.conf")
		r := newResolv(path, discard)
		want := func(when, servers, search string, bad bool) {
			t.Helper()
			conf := r.now()
			if got := strings.Join(conf.servers, " "); got != servers || conf.search != search || (conf.err != nil) != bad {
				t.Errorf("%s: %q, %q, %v; want %q, %q, an error: %v", when, got, conf.search, conf.err, servers, search, bad)
			}
		}
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want("without a file", "", "", true)
		write("search A.b c.d\nnameserver 10.0.0.1\nnameserver fe80::1%eth0 # of a link\nnameserver 10.0.0.1\nnameserver 10.0.0.2:5353\n")
		want("at once", "", "", true)
		time.Sleep(resolvCheck)
		const servers = "10.0.0.1:53 [fe80::1%eth0]:53 10.0.0.2:5353"
		want("read", servers, "a.b.", false)
		write("# nothing\n")
		time.Sleep(resolvCheck)
		want("without servers", servers, "a.b.", true)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(resolvCheck)
		want("removed", servers, "a.b.", true)
		write("nameserver ::1\ndomain x.y\n")
		time.Sleep(resolvCheck)
		want("back", "[::1]:53", "x.y.", false)
		write("nameserver 10.0.0.9\n" + strings.Repeat("#", 2*maxResolv))
		time.Sleep(resolvCheck)
		want("a long line", "10.0.0.9:53", "", false)
	})
}

// Who did not answer is asked last, for a time.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResolv(resolvFile(t, "", "10.0.0.1", "10.0.0.2", "10.0.0.3"), discard)
		last := func() map[string]bool {
			seen := map[string]bool{}
			for range 200 {
				seen[r.order(time.Now())[2]] = true
			}
			return seen
		}
		if got := last(); len(got) != 3 {
			t.Errorf("last are %v, want each at times", got)
		}
		r.fails("10.0.0.2:53", time.Now())
		r.fails("10.0.0.4:53", time.Now()) // of another time
		if got := last(); len(got) != 1 || !got["10.0.0.2:53"] {
			t.Errorf("last are %v, want the one that did not answer", got)
		}
		r.works("10.0.0.2:53")
		if got := last(); len(got) != 3 {
			t.Errorf("last are %v, want each at times: it works again", got)
		}
		r.fails("10.0.0.2:53", time.Now())
		time.Sleep(avoidFor)
		if got := last(); len(got) != 3 {
			t.Errorf("last are %v, want each at times: it was long ago", got)
		}
	})
}

func TestNew(t *testing.T) {
	for _, c := range []Config{{Timeout: -1}, {MaxForwards: -1}, {Hold: -1}} {
		if _, err := New(c); err == nil {
			t.Errorf("New(%+v) has no objection", c)
		}
	}
}
