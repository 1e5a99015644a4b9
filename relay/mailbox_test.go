package relay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// box is a mailbox with one passed type; its requests are told by their bytes.
type box struct {
	m mailbox
	t typeState
}

// sotw makes a state-of-the-world request from "names/nonce" or "names/nonce/no".
func (b *box) sotw(text string) *entry {
	part := strings.Split(text, "/")
	e := &entry{t: &b.t, frame: frameOf([]byte(text)), nonce: part[1], rejects: len(part) > 2, names: len(part[0])}
	for _, r := range part[0] {
		e.nameSum += uint64(r) * 1_000_003
	}
	return e
}

func (b *box) sent() (all []string) {
	for e := b.m.head(); e != nil; e = b.m.head() {
		all = append(all, string(e.frame.data.Materialize()))
		b.m.pop()
	}
	return all
}

func TestSotwRequestsCoalesce(t *testing.T) {
	for _, c := range []struct{ name, put, want string }{
		{"the newest wins", "a/ ab/ abc/", "abc/"},
		{"an ACK wins over a change", "a/1 ab/1 ab/2", "ab/2"},
		{"a NACK is not lost to a change", "a/1/no ab/1", "a/1/no ab/1"},
		{"a NACK is not lost to two changes", "a/1/no ab/1 abc/1", "a/1/no abc/1"},
		{"a NACK is void when a newer response was answered", "a/1/no a/2", "a/2"},
		{"a NACK is void when a newer response was rejected", "a/1/no a/2/no", "a/2/no"},
		{"a change is not lost to a NACK, whose names some ignore", "ab/1 ab/2/no", "ab/1 ab/2/no"},
		{"change, NACK, change", "ab/1 ab/2/no abc/2 ac/2", "ab/1 ab/2/no ac/2"},
		{"the void NACK between two changes", "ab/1 ab/2/no abc/2 ac/3", "ac/3"},
		{"nothing is not asked for first", "a/ /", "a/ /"},
		{"nothing and then something", "a/ / b/", "b/"},
		{"nothing twice", "a/ / /", "a/ /"},
	} {
		var b box
		for text := range strings.FieldsSeq(c.put) {
			if err := b.m.put(b.sotw(text), false); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Join(b.sent(), " "); got != c.want {
			t.Errorf("%s: %s is sent as %q, want %q", c.name, c.put, got, c.want)
		}
		if b.m.bytes != 0 || len(b.t.waiting) != 0 {
			t.Errorf("%s: %d bytes and %d requests are still accounted for", c.name, b.m.bytes, len(b.t.waiting))
		}
	}
}

func TestHeldSotwNACK(t *testing.T) {
	for _, c := range []struct{ name, put, want string }{
		{"it goes before a change of names", "ab/1", "a/1/no ab/1"},
		{"an answer to a newer response voids it", "a/2", "a/2"},
		{"a NACK with other names voids it", "ab/1/no", "ab/1/no"},
		{"alone it waits", "", ""},
	} {
		var b box
		b.t.requested = true
		held := b.sotw("a/1/no")
		held.due = time.Now().Add(time.Hour)
		b.m.hold(held, false)
		for text := range strings.FieldsSeq(c.put) {
			if err := b.m.put(b.sotw(text), false); err != nil {
				t.Fatal(err)
			}
		}
		b.m.release(&b.t, time.Now())
		if got := strings.Join(b.sent(), " "); got != c.want {
			t.Errorf("%s: sent %q, want %q", c.name, got, c.want)
		}
		b.m.release(&b.t, time.Now().Add(2*time.Hour))
		if got := strings.Join(b.sent(), " "); got != "" && c.put != "" || c.put == "" && got != "a/1/no" {
			t.Errorf("%s: when it is due %q is sent", c.name, got)
		}
	}
}

func TestHeldDeltaNACKsAreBounded(t *testing.T) {
	var b box
	for range 10 * maxHeld {
		b.m.hold(b.sotw("/1/no"), true)
	}
	if len(b.t.held) != maxHeld {
		t.Errorf("%d NACKs are held, want %d", len(b.t.held), maxHeld)
	}
}

func (b *box) delta(r *discoveryv3.DeltaDiscoveryRequest) *entry {
	raw, err := proto.Marshal(r)
	if err != nil {
		panic(err)
	}
	changes := len(r.GetResourceNamesSubscribe())+len(r.GetResourceNamesUnsubscribe())+len(r.GetInitialResourceVersions()) > 0
	return &entry{t: &b.t, frame: frameOf(raw), nonce: r.GetResponseNonce(), rejects: r.GetErrorDetail() != nil, changes: changes}
}

// However requests are merged, the control plane ends up with the same names, the last ACK, every NACK and everything that is not ours to merge.
func TestDeltaRequestsMerge(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 50 {
		var b box
		b.t.requested = round%2 == 0
		want, nacks := make(map[string]bool), 0
		for i := range 3000 {
			r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "t"}
			name := fmt.Sprint("n", random.IntN(50))
			if i == 0 {
				r.InitialResourceVersions = map[string]string{"x": "1"}
			} else if random.IntN(3) > 0 {
				r.ResourceNamesSubscribe = []string{name}
			} else {
				r.ResourceNamesUnsubscribe = []string{name}
			}
			if random.IntN(4) == 0 {
				r.ResponseNonce = fmt.Sprint(i)
			}
			if random.IntN(100) == 0 {
				r.ErrorDetail = errorDetail(fmt.Errorf("no"))
				nacks++
			}
			apply(want, r)
			if err := b.m.put(b.delta(r), true); err != nil {
				t.Fatal(err)
			}
			if len(b.t.waiting) > 2*mergeAt {
				t.Fatalf("%d requests wait", len(b.t.waiting))
			}
		}
		got := make(map[string]bool)
		for i, raw := range b.sent() {
			var r discoveryv3.DeltaDiscoveryRequest
			if err := proto.Unmarshal([]byte(raw), &r); err != nil {
				t.Fatal(err)
			}
			if (len(r.GetInitialResourceVersions()) > 0) != (i == 0) {
				t.Errorf("request %d has initial versions %v", i, r.GetInitialResourceVersions())
			}
			if r.GetErrorDetail() != nil {
				nacks--
			}
			apply(got, &r)
		}
		if fmt.Sprint(sortedTrue(got)) != fmt.Sprint(sortedTrue(want)) {
			t.Fatalf("names after merging %v, want %v", sortedTrue(got), sortedTrue(want))
		}
		if nacks != 0 {
			t.Errorf("%d NACKs were lost", nacks)
		}
		if b.m.bytes != 0 {
			t.Errorf("%d bytes are still accounted for", b.m.bytes)
		}
	}
}

func apply(names map[string]bool, r *discoveryv3.DeltaDiscoveryRequest) {
	for _, name := range r.GetResourceNamesUnsubscribe() {
		names[name] = false
	}
	for _, name := range r.GetResourceNamesSubscribe() {
		names[name] = true
	}
}

func sortedTrue(names map[string]bool) (all []string) {
	for name, on := range names {
		if on {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

func TestMailboxIsBounded(t *testing.T) {
	var b box
	big := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "t", ErrorDetail: errorDetail(fmt.Errorf("%s", strings.Repeat("x", maxText))), ResponseNonce: "1"}
	for range 1 << 20 {
		if err := b.m.put(b.delta(big), true); err != nil {
			if b.m.bytes > mailboxBytes+8<<10 {
				t.Errorf("%d bytes wait, want at most %d and one more request", b.m.bytes, mailboxBytes)
			}
			return
		}
	}
	t.Error("a mailbox takes a million NACKs, want an error at its bound")
}

// A frame is freed when it is dropped, never twice.
func TestDroppedFramesAreFreed(t *testing.T) {
	var b box
	pool := new(countingPool)
	for i := range 100 {
		data := make([]byte, 4096)
		e := b.sotw("a/1")
		e.frame = frame{data: mem.BufferSlice{mem.NewBuffer(&data, pool)}}
		e.rejects = i%3 == 0
		if err := b.m.put(e, false); err != nil {
			t.Fatal(err)
		}
	}
	left := 0
	for e := b.m.head(); e != nil; e = b.m.head() {
		b.m.pop()
		e.frame.data.Free()
		left++
	}
	if pool.puts != 100 {
		t.Errorf("%d of 100 frames were freed (%d sent)", pool.puts, left)
	}
}

type countingPool struct{ puts int }

func (p *countingPool) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (p *countingPool) Put(*[]byte)       { p.puts++ }
