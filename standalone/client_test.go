package standalone

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/anypb"
)

// client is an xDS client of either protocol, which says what it receives in one form:
// "listener 1: a b -c" for a response with a and b, c removed.
type client struct {
	t        *testing.T
	send     func(typeURL, nonce string, subscribe []string, nack string)
	received chan string
	nonces   map[string]string
}

// serve runs a source's ADS server in the bubble and connects a client to it.
func serve(t *testing.T, s *Source, delta bool) *client {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	s.Register(server)
	go server.Serve(lis)
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, received: make(chan string, 1000), nonces: map[string]string{}}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		conn.Close()
		server.Stop()
	})
	api := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if delta {
		c.delta(ctx, api)
	} else {
		c.sotw(ctx, api)
	}
	return c
}

func (c *client) sotw(ctx context.Context, api discoveryv3.AggregatedDiscoveryServiceClient) {
	stream, err := api.StreamAggregatedResources(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	names, version, last := map[string][]string{}, map[string]string{}, map[string]string{}
	c.send = func(typeURL, nonce string, subscribe []string, nack string) {
		names[typeURL] = append(names[typeURL], subscribe...)
		req := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ResourceNames: names[typeURL], Node: &corev3.Node{Id: "test"}}
		if nack != "" {
			req.ErrorDetail = &rpcstatus.Status{Code: 13, Message: nack}
		} else if nonce != "" {
			version[typeURL] = last[typeURL]
		}
		req.VersionInfo = version[typeURL]
		if err := stream.Send(req); err != nil {
			c.t.Error(err)
		}
	}
	go func() {
		for {
			resp, err := stream.Recv()
			if err != nil {
				return
			}
			last[resp.GetTypeUrl()] = resp.GetVersionInfo()
			c.note(resp.GetTypeUrl(), resp.GetNonce(), anys(resp.GetResources()), nil)
		}
	}()
}

func (c *client) delta(ctx context.Context, api discoveryv3.AggregatedDiscoveryServiceClient) {
	stream, err := api.DeltaAggregatedResources(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	c.send = func(typeURL, nonce string, subscribe []string, nack string) {
		req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ResourceNamesSubscribe: subscribe, Node: &corev3.Node{Id: "test"}}
		if nack != "" {
			req.ErrorDetail = &rpcstatus.Status{Code: 13, Message: nack}
		}
		if err := stream.Send(req); err != nil {
			c.t.Error(err)
		}
	}
	go func() {
		for {
			resp, err := stream.Recv()
			if err != nil {
				return
			}
			var names []string
			for _, r := range resp.GetResources() {
				names = append(names, r.GetName())
			}
			c.note(resp.GetTypeUrl(), resp.GetNonce(), names, resp.GetRemovedResources())
		}
	}()
}

func anys(list []*anypb.Any) []string {
	var names []string
	for _, a := range list {
		m, err := a.UnmarshalNew()
		if err != nil {
			panic(err)
		}
		names = append(names, nameOf(m))
	}
	return names
}

func (c *client) note(typeURL, nonce string, names, removed []string) {
	slices.Sort(names)
	for _, r := range removed {
		names = append(names, "-"+r)
	}
	c.received <- fmt.Sprintf("%s: %s\n%s", kindOfURL(typeURL), strings.Join(names, " "), nonce)
}

// take returns what has arrived by now, and remembers the nonces.
func (c *client) take() []string {
	c.t.Helper()
	synctest.Wait()
	var got []string
	for {
		select {
		case text := <-c.received:
			text, nonce, _ := strings.Cut(text, "\n")
			k, _, _ := strings.Cut(text, ":")
			c.nonces[typeURLs[kind(k)]] = nonce
			got = append(got, text)
		default:
			return got
		}
	}
}

func (c *client) want(what string, want ...string) {
	c.t.Helper()
	if diff := cmp.Diff(want, c.take()); diff != "" {
		c.t.Errorf("%s: responses differ (-want +got):\n%s", what, diff)
	}
}

func (c *client) subscribe(k kind, names ...string) {
	c.send(typeURLs[k], "", names, "")
}

func (c *client) ack(k kind, more ...string) { c.send(typeURLs[k], c.nonces[typeURLs[k]], more, "") }

func (c *client) nack(k kind, text string) { c.send(typeURLs[k], c.nonces[typeURLs[k]], nil, text) }

// bothProtocols runs a test with a source and a client of each protocol, in a bubble.
func bothProtocols(t *testing.T, test func(t *testing.T, s *Source, c *client)) {
	for _, delta := range []bool{false, true} {
		t.Run(map[bool]string{false: "sotw", true: "delta"}[delta], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := New(Config{Dir: "/etc/edge"})
				if err != nil {
					t.Fatal(err)
				}
				test(t, s, serve(t, s, delta))
			})
		})
	}
}

// state makes a snapshot: "l1=a" is a listener l1 whose content depends on a.
func state(t *testing.T, k kind, specs ...string) snapshot {
	t.Helper()
	c := newConfig("/etc/edge")
	for _, spec := range specs {
		name, content, _ := strings.Cut(spec, "=")
		r := &resource{kind: k, name: name, node: nodeAt(len(c.resources) + 1)}
		switch k {
		case listeners:
			r.msg = &listenerv3.Listener{Name: name, StatPrefix: content}
		case clusters:
			r.msg = &clusterv3.Cluster{Name: name, AltStatName: content}
		case routes:
			r.msg = &routev3.RouteConfiguration{Name: name, InternalOnlyHeaders: []string{content}}
		case extensions:
			r.msg = &corev3.TypedExtensionConfig{Name: name, TypedConfig: &anypb.Any{TypeUrl: content}}
		}
		c.resources = append(c.resources, r)
	}
	s, err := c.snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func together(states ...snapshot) snapshot {
	all := states[0]
	for _, s := range states[1:] {
		all = s.over(all, served...)
	}
	return all
}

func (s *Source) put(t *testing.T, next snapshot) {
	t.Helper()
	s.accept(newConfig(s.cfg.Dir), next, contents{})
	if err := s.set(t.Context(), next); err != nil {
		t.Fatal(err)
	}
}
