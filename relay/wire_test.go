package relay

import (
	"bytes"
	"hash/maphash"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// scattered lays bytes out in buffers of n bytes, as they come off a connection.
func scattered(raw []byte, n int) frame {
	var f frame
	for chunk := range slices.Chunk(raw, max(1, n)) {
		f.data = append(f.data, mem.SliceBuffer(chunk))
	}
	return f
}

func samples() map[string][]proto.Message {
	node := &corev3.Node{Id: "gw", Cluster: "edge"}
	bad := &status.Status{Code: 13, Message: "Invalid path: /nonexist.wasm"}
	return map[string][]proto.Message{
		"sotw request": {
			&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeCDS},
			&discoveryv3.DiscoveryRequest{TypeUrl: typeEDS, VersionInfo: "3", ResponseNonce: "n", ResourceNames: []string{"a", "b"}, ErrorDetail: bad},
		},
		"sotw response": {
			&discoveryv3.DiscoveryResponse{TypeUrl: typeLDS, VersionInfo: "3", Nonce: "n", Resources: []*anypb.Any{{TypeUrl: typeLDS, Value: bytes.Repeat([]byte{7}, 300)}}},
		},
		"delta request": {
			&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeECDS, ResourceNamesSubscribe: []string{"a"}, InitialResourceVersions: map[string]string{"a": "1"}},
			&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeECDS, ResponseNonce: "n", ErrorDetail: bad, ResourceNamesUnsubscribe: []string{"b"}},
		},
		"delta response": {
			&discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeCDS, SystemVersionInfo: "3", Nonce: "n", RemovedResources: []string{"x"}, Resources: []*discoveryv3.Resource{{Name: "a", Version: "1"}}},
		},
	}
}

func TestHashLeavesTheNonceOut(t *testing.T) {
	seed := maphash.MakeSeed()
	sum := func(p *protocol, m proto.Message, cut int) uint64 {
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		h, err := parse(scattered(raw, cut), &p.response, seed)
		if err != nil {
			t.Fatal(err)
		}
		return h.hash
	}
	for _, p := range []*protocol{sotwProtocol(), deltaProtocol()} {
		for _, m := range samples()[p.name+" response"] {
			want := sum(p, m, 1<<20)
			set := func(field string, value string) proto.Message {
				changed := proto.Clone(m)
				r := changed.ProtoReflect()
				r.Set(r.Descriptor().Fields().ByName(protoName(field)), protoString(value))
				return changed
			}
			if got := sum(p, set("nonce", "a much longer nonce"), 3); got != want {
				t.Errorf("%s: another nonce in other buffers gives hash %x, want %x", p.name, got, want)
			}
			if got := sum(p, set("type_url", "other"), 1<<20); got == want {
				t.Errorf("%s: another type gives the same hash", p.name)
			}
		}
	}
}

// A go-control-plane snapshot cache sends the resources of the same snapshot in another order each time.
func TestHashIgnoresTheOrderOfResources(t *testing.T) {
	seed := maphash.MakeSeed()
	sum := func(values ...string) uint64 {
		m := &discoveryv3.DiscoveryResponse{TypeUrl: typeLDS, VersionInfo: "1"}
		for _, v := range values {
			m.Resources = append(m.Resources, &anypb.Any{TypeUrl: typeLDS, Value: []byte(v)})
		}
		raw, _ := proto.Marshal(m)
		h, err := parse(scattered(raw, 5), &sotwProtocol().response, seed)
		if err != nil {
			t.Fatal(err)
		}
		return h.hash
	}
	if sum("one", "two") != sum("two", "one") {
		t.Error("the same resources in another order have another hash")
	}
	if sum("one", "two") == sum("one", "three") || sum("one") == sum("one", "one") {
		t.Error("other resources have the same hash")
	}
}

func TestNameSumIgnoresOrder(t *testing.T) {
	seed := maphash.MakeSeed()
	sum := func(names ...string) uint64 {
		raw, _ := proto.Marshal(&discoveryv3.DiscoveryRequest{TypeUrl: typeEDS, ResourceNames: names})
		h, err := parse(frameOf(raw), &sotwProtocol().request, seed)
		if err != nil {
			t.Fatal(err)
		}
		return h.nameSum
	}
	if sum("a", "b", "c") != sum("c", "a", "b") {
		t.Error("the same names in another order have another sum")
	}
	if sum("a", "b") == sum("a", "c") || sum("a") == sum("a", "b") {
		t.Error("other names have the same sum")
	}
}

func TestErrorTextIsBounded(t *testing.T) {
	long := strings.Repeat("é", maxDetail)
	raw, _ := proto.Marshal(&discoveryv3.DiscoveryRequest{ErrorDetail: &status.Status{Message: long}})
	h, err := parse(frameOf(raw), &sotwProtocol().request, maphash.MakeSeed())
	if err != nil {
		t.Fatal(err)
	}
	if len(h.errorText) > maxDetail+len("…") || !strings.HasSuffix(h.errorText, "…") {
		t.Errorf("a text of %d bytes is kept with %d", len(long), len(h.errorText))
	}
	if got := firstLine("one\ntwo"); got != "one" {
		t.Errorf("firstLine = %q, want one", got)
	}
}

// FuzzFrame holds the reader against the protobuf library: whatever that accepts is read the same, in whatever buffers it lies.
func FuzzFrame(f *testing.F) {
	for _, messages := range samples() {
		for _, m := range messages {
			raw, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw, uint8(1), true)
			f.Add(raw, uint8(7), false)
			f.Add(append(raw, raw...), uint8(200), true)
		}
	}
	f.Add([]byte{0x0b, 0x13, 0x08, 0x01, 0x14, 0x0c}, uint8(2), false) // groups
	f.Add([]byte{0x0d, 1, 2, 3, 4, 0x09, 1, 2, 3, 4, 5, 6, 7, 8}, uint8(3), true)
	f.Add([]byte{0x2a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, uint8(1), false)
	seed := maphash.MakeSeed()
	f.Fuzz(func(t *testing.T, raw []byte, cut uint8, delta bool) {
		p := sotwProtocol()
		if delta {
			p = deltaProtocol()
		}
		checkRequest(t, p, raw, scattered(raw, int(cut)), seed)
		checkResponse(t, p, raw, scattered(raw, int(cut)), seed)
	})
}

func checkRequest(t *testing.T, p *protocol, raw []byte, scattered frame, seed maphash.Seed) {
	h, err := parse(scattered, &p.request, seed)
	var want header
	var m proto.Message
	if p.delta {
		d := new(discoveryv3.DeltaDiscoveryRequest)
		if proto.Unmarshal(raw, d) != nil {
			return
		}
		want = header{typeURL: []byte(d.GetTypeUrl()), nonce: []byte(d.GetResponseNonce()), names: len(d.GetResourceNamesSubscribe()), unnames: len(d.GetResourceNamesUnsubscribe()), rejects: d.GetErrorDetail() != nil, errorText: bounded(d.GetErrorDetail().GetMessage(), maxDetail)}
		m = d.GetNode()
	} else {
		d := new(discoveryv3.DiscoveryRequest)
		if proto.Unmarshal(raw, d) != nil {
			return
		}
		want = header{typeURL: []byte(d.GetTypeUrl()), version: []byte(d.GetVersionInfo()), nonce: []byte(d.GetResponseNonce()), names: len(d.GetResourceNames()), rejects: d.GetErrorDetail() != nil, errorText: bounded(d.GetErrorDetail().GetMessage(), maxDetail)}
		m = d.GetNode()
	}
	if err != nil {
		t.Fatalf("parse: %v, but the protobuf library accepts it", err)
	}
	same(t, h, want)
	node := new(corev3.Node)
	if err := proto.Unmarshal(h.node, node); err != nil {
		t.Fatalf("the node cannot be read: %v", err)
	}
	if m.ProtoReflect().IsValid() && !sameNode(node, m.(*corev3.Node)) {
		t.Fatalf("node %v, want %v", node, m)
	}
}

// sameNode compares the bytes, since a node may hold a NaN.
func sameNode(a, b *corev3.Node) bool {
	options := proto.MarshalOptions{Deterministic: true}
	x, _ := options.Marshal(a)
	y, _ := options.Marshal(b)
	return bytes.Equal(x, y)
}

func checkResponse(t *testing.T, p *protocol, raw []byte, scattered frame, seed maphash.Seed) {
	h, err := parse(scattered, &p.response, seed)
	var want header
	if p.delta {
		d := new(discoveryv3.DeltaDiscoveryResponse)
		if proto.Unmarshal(raw, d) != nil {
			return
		}
		want = header{typeURL: []byte(d.GetTypeUrl()), version: []byte(d.GetSystemVersionInfo()), nonce: []byte(d.GetNonce())}
	} else {
		d := new(discoveryv3.DiscoveryResponse)
		if proto.Unmarshal(raw, d) != nil {
			return
		}
		want = header{typeURL: []byte(d.GetTypeUrl()), version: []byte(d.GetVersionInfo()), nonce: []byte(d.GetNonce())}
	}
	if err != nil {
		t.Fatalf("parse: %v, but the protobuf library accepts it", err)
	}
	same(t, h, want)
}

func same(t *testing.T, got, want header) {
	t.Helper()
	if !bytes.Equal(got.typeURL, want.typeURL) || !bytes.Equal(got.version, want.version) || !bytes.Equal(got.nonce, want.nonce) ||
		got.names != want.names || got.unnames != want.unnames || got.rejects != want.rejects || got.errorText != want.errorText {
		t.Fatalf("parse = %+v, want %+v", got, want)
	}
}
