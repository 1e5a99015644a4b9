package relay

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// snapshotRig is a relay in front of go-control-plane's own server.
type snapshotRig struct {
	*rig
	cache cache.SnapshotCache
}

func newSnapshotRig(t *testing.T, delta bool) *snapshotRig {
	t.Helper()
	s := &snapshotRig{cache: cache.NewSnapshotCache(true, cache.IDHash{}, nil)}
	network := xdstest.NewNetwork()
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(t.Context(), s.cache, nil))
	network.Serve(t, server)
	s.rig = newRigWith(t, nil, delta, true, func(c *Config) { c.Upstream = network.Dial(t) })
	return s
}

// set makes a snapshot of one cluster, five listeners and extension configs "name=text".
func (s *snapshotRig) set(version string, extensions ...string) {
	s.t.Helper()
	var configs []types.Resource
	for _, one := range extensions {
		name, text, _ := strings.Cut(one, "=")
		packed, err := anypb.New(wrapperspb.String(text))
		if err != nil {
			s.t.Fatal(err)
		}
		configs = append(configs, &corev3.TypedExtensionConfig{Name: name, TypedConfig: packed})
	}
	var listeners []types.Resource
	for i := range 5 {
		listeners = append(listeners, &listenerv3.Listener{Name: fmt.Sprint("l", i), StatPrefix: version})
	}
	snapshot, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{
		resource.ClusterType:         {&clusterv3.Cluster{Name: "c1"}},
		resource.ListenerType:        listeners,
		resource.ExtensionConfigType: configs,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cache.SetSnapshot(s.t.Context(), "gw", snapshot); err != nil {
		s.t.Fatal(err)
	}
}

func withSnapshots(t *testing.T, script func(*snapshotRig)) {
	for _, delta := range []bool{false, true} {
		t.Run(protocolName(delta), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { script(newSnapshotRig(t, delta)) })
		})
	}
}

// The server answers each NACK at once with the same listener; a repair arrives at once all the same.
func TestSnapshotCacheRejectedListener(t *testing.T) {
	withSnapshots(t, func(s *snapshotRig) {
		t := s.t
		s.set("1")
		s.envoy.Open()
		s.envoy.Want(xdstest.LDS)
		start, responses := time.Now(), 0
		for time.Since(start) < 10*time.Second {
			raw, ok := s.envoy.RecvWithin(10*time.Second - time.Since(start))
			if !ok {
				break
			}
			responses++
			s.envoy.NACK(raw, "port taken")
		}
		if responses < 1 || responses > 5 {
			t.Errorf("%d responses in 10 s for a listener that Envoy rejects, want 1 to 5", responses)
		}
		s.envoy.Want(xdstest.CDS)
		if got := s.envoy.Recv(); got.Type != xdstest.CDS {
			t.Errorf("got %v, want the clusters while the listener's NACK is held", got)
		}
		time.Sleep(9 * time.Minute) // the slow end
		s.set("2")
		for deadline := time.Now().Add(time.Second); ; {
			got, ok := s.envoy.RecvWithin(time.Until(deadline))
			if !ok {
				t.Fatal("the repair did not come within a second")
			}
			if got.Version == "2" || got.Type == xdstest.LDS && s.envoy.Delta {
				s.envoy.ACK(got)
				break
			}
			s.envoy.NACK(got, "port taken")
		}
	})
}

func TestSnapshotCacheExtensionConfigs(t *testing.T) {
	withSnapshots(t, func(s *snapshotRig) {
		t := s.t
		offers := 0
		var verdict error
		s.engine.onOffer = func(offer uint64, resources []*discoveryv3.Resource) {
			offers++
			if verdict == nil {
				for _, r := range resources {
					s.engine.push(r)
				}
			}
			s.engine.settle(offer, verdict)
		}
		s.set("1", "e1=a", "e2=a")
		s.envoy.Open()
		s.envoy.Want(xdstest.CDS)
		s.envoy.ACK(s.envoy.Recv())
		s.envoy.Want(xdstest.ECDS, "e1")
		s.envoy.Want(xdstest.ECDS, "e1", "e2")
		got := s.extensions(time.Second)
		if got["e1"] != "a" || got["e2"] != "a" {
			t.Errorf("Envoy has %v, want both names", got)
		}
		s.set("2", "e1=b", "e2=a")
		if got := s.extensions(time.Second); got["e1"] != "b" {
			t.Errorf("Envoy has %v, want the change", got)
		}
		s.wait()
		verdict, offers = errTest, 0
		s.set("3", "e1=c", "e2=a")
		s.extensions(10 * time.Second)
		s.wait()
		if offers < 1 || offers > 5 {
			t.Errorf("%d offers in 10 s when each is rejected, want 1 to 5", offers)
		}
		verdict = nil
		s.set("4", "e1=d", "e2=a")
		if got := s.extensions(500 * time.Millisecond); got["e1"] != "d" {
			t.Errorf("Envoy has %v, want the repair at once", got)
		}
		s.wait()
		offers = 0
		s.envoy.Want(xdstest.ECDS, "e1", "e2", "unknown")
		s.extensions(time.Minute)
		if offers > 3 {
			t.Errorf("%d offers after a name was added that the server lacks", offers)
		}
	})
}

// While a response waits for a slow module, a newer one comes all the same: the server sends nothing before it has an answer.
func TestSnapshotCacheNewerOvertakesAnUnsettledOffer(t *testing.T) {
	withSnapshots(t, func(s *snapshotRig) {
		t := s.t
		var offered []string
		var last uint64
		s.engine.onOffer = func(offer uint64, resources []*discoveryv3.Resource) {
			last = offer
			offered = append(offered, resources[0].GetVersion())
		}
		s.set("1", "e1=a")
		s.envoy.Open()
		s.envoy.Want(xdstest.CDS)
		s.envoy.ACK(s.envoy.Recv())
		s.envoy.Want(xdstest.ECDS, "e1")
		s.wait()
		s.set("2", "e1=b")
		s.extensions(patience + 100*time.Millisecond)
		s.wait()
		if len(offered) != 2 {
			t.Fatalf("offered %v after %v, want both versions", offered, patience)
		}
		s.engine.settle(last, errTest) // before it was acknowledged
		s.set("3", "e1=c")
		s.extensions(patience)
		s.wait()
		// The second may come once more, if its rejection is there before the third is.
		if len(slices.Compact(slices.Clone(offered))) != 3 {
			t.Errorf("offered %v, want the third version after the second was rejected", offered)
		}
	})
}

// extensions accepts what Envoy gets until nothing comes for d.
func (s *snapshotRig) extensions(d time.Duration) map[string]string {
	s.t.Helper()
	got := make(map[string]string)
	for {
		r, ok := s.envoy.RecvWithin(d)
		if !ok {
			return got
		}
		if r.Type == xdstest.ECDS && len(r.Resources) != 1 {
			s.t.Errorf("a response has %d extension configs, want one each", len(r.Resources))
		}
		for _, one := range r.Resources {
			if r.Type == xdstest.ECDS {
				got[one.Name] = one.Text
			}
		}
		s.envoy.ACK(r)
	}
}
