package standalone

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
)

const bootstrapText = `{
 "node": {"id": "test", "cluster": "test"},
 "admin": {"address": {"pipe": {"path": "%[1]s/admin.sock"}}},
 "dynamic_resources": {
  "lds_config": {"ads": {}, "resource_api_version": "V3"}, "cds_config": {"ads": {}, "resource_api_version": "V3"},
  "ads_config": {"api_type": "%[2]s", "transport_api_version": "V3", "set_node_on_first_message_only": true,
   "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}]}},
 "static_resources": {"clusters": [
  {"name": "xds-grpc", "type": "STATIC", "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
   "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}},
   "load_assignment": {"cluster_name": "xds-grpc", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": "%[1]s/xds.sock"}}}}]}]}},
  {"name": "sds-grpc", "type": "STATIC", "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
   "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}},
   "load_assignment": {"cluster_name": "sds-grpc", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": "%[1]s/xds.sock"}}}}]}]}}]}}`

// runEnvoy starts the real Envoy with a source as its only control plane and returns its directory.
func runEnvoy(t *testing.T, s *Source, delta bool) string {
	t.Helper()
	binary, err := filepath.Abs("../.tools/envoy")
	if err == nil {
		_, err = os.Stat(binary)
	}
	if err != nil {
		t.Fatalf("no Envoy to test with (run make tools): %v", err)
	}
	dir, err := os.MkdirTemp("", "sa") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("unix", filepath.Join(dir, "xds.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	s.Register(server)
	secretv3.RegisterSecretDiscoveryServiceServer(server, newFakeSecrets(t))
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(lis) })
	api := map[bool]string{false: "GRPC", true: "DELTA_GRPC"}[delta]
	put(t, dir, "bootstrap.json", fmt.Sprintf(bootstrapText, dir, api))
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary, "-c", filepath.Join(dir, "bootstrap.json"), "-l", "warning", "--disable-hot-restart", "--concurrency", "1")
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		cmd.Wait()
		server.Stop()
		wg.Wait()
		os.RemoveAll(dir)
		if t.Failed() {
			t.Logf("Envoy said at last:\n%s", log.Bytes()[max(0, log.Len()-4000):])
		}
	})
	return dir
}

// fakeSecrets gives every name a certificate or, by the name, roots.
type fakeSecrets struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	cert, key []byte
}

func newFakeSecrets(t *testing.T) *fakeSecrets {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &fakeSecrets{
		cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}
}

func (f *fakeSecrets) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		if req.GetResponseNonce() != "" {
			continue
		}
		resp := &discoveryv3.DiscoveryResponse{TypeUrl: req.GetTypeUrl(), VersionInfo: "1", Nonce: "1"}
		for _, name := range req.GetResourceNames() {
			secret := &tlsv3.Secret{Name: name}
			inline := func(b []byte) *corev3.DataSource {
				return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
			}
			if strings.HasPrefix(name, "file-root:") || name == "roots" {
				secret.Type = &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(f.cert)}}
			} else {
				secret.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(f.cert), PrivateKey: inline(f.key)}}
			}
			packed, err := anypb.New(secret)
			if err != nil {
				return err
			}
			resp.Resources = append(resp.Resources, packed)
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

// TestRealEnvoy: the real Envoy accepts what the golden configurations become, in both protocols.
func TestRealEnvoy(t *testing.T) {
	dirs, err := filepath.Glob("testdata/ok/*[^n]")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no configurations (%v)", err)
	}
	for _, dir := range dirs {
		for _, delta := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/delta=%v", filepath.Base(dir), delta), func(t *testing.T) {
				c := mustLoad(t, dir)
				// This one needs files that are not here: Envoy reads them itself.
				c.resources = slices.DeleteFunc(c.resources, func(r *resource) bool { return r.name == "left-alone" })
				for _, r := range c.of(listeners) { // any free port
					if a := r.msg.(*listenerv3.Listener).GetAddress().GetSocketAddress(); a != nil {
						a.PortSpecifier = &corev3.SocketAddress_PortValue{}
					}
				}
				next, err := c.snapshot()
				if err != nil {
					t.Fatal(err)
				}
				s, err := New(Config{Dir: "/etc/edge"})
				if err != nil {
					t.Fatal(err)
				}
				s.accept(c, next, contents{})
				if err := s.set(t.Context(), next); err != nil {
					t.Fatal(err)
				}
				admin := runEnvoy(t, s, delta)
				eventually(t, "Envoy has answered", func() bool { return s.answeredAll(served[:3]...) })
				for _, p := range s.Problems() {
					if !strings.HasPrefix(p.Resource, string(extensions)) { // not converted here: that is the relay's work
						t.Errorf("rejected: %v", p)
					}
				}
				eventually(t, "Envoy has the listeners", func() bool {
					return slices.Equal(dumped(t, admin, "dynamic_listeners"), names(next[listeners]))
				})
			})
		}
	}
}

func names(m map[string]entry) []string {
	var list []string
	for name := range m {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// answeredAll: a stream has answered the current version of each kind that has resources.
func (s *Source) answeredAll(kinds ...kind) bool {
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	for sess := range s.sessions.list {
		for _, k := range kinds {
			last := sess.types[typeURLs[k]]
			if len(s.served[k]) > 0 && (last == nil || !last.settled || last.version != s.served.version(k)) {
				return false
			}
		}
		return true
	}
	return false
}

// dumped are the names of one list of Envoy's config dump.
func dumped(t *testing.T, dir, resource string) []string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "admin.sock"))
	}}}
	resp, err := client.Get("http://admin/config_dump?resource=" + resource)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var dump struct {
		Configs []struct {
			Name string `json:"name"`
		} `json:"configs"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&dump); err != nil {
		return nil
	}
	var list []string
	for _, c := range dump.Configs {
		list = append(list, c.Name)
	}
	slices.Sort(list)
	return list
}

const directText = `static_resources:
  listeners:
  - name: main
    address: { socket_address: { address: 127.0.0.1, port_value: PORT } }
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: main
          route_config: { virtual_hosts: [{ name: all, domains: ["*"], routes: [{ match: { prefix: / }, ACTION }] }] }
          http_filters: [{ name: router, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router } }]
`

// TestRealEdits: edits reach a real Envoy within a second, and what it rejects is shown with its place.
func TestRealEdits(t *testing.T) {
	for _, delta := range []bool{false, true} {
		t.Run(fmt.Sprintf("delta=%v", delta), func(t *testing.T) {
			taken, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer taken.Close()
			free, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			address := free.Addr().String()
			free.Close()
			_, port, _ := net.SplitHostPort(address)
			text := func(action string) string {
				return strings.NewReplacer("PORT", port, "ACTION", action).Replace(directText)
			}
			dir := write(t, map[string]string{"a.yaml": text("direct_response: { status: 200, body: { inline_string: one } }")})
			s := running(t, Config{Dir: dir})
			runEnvoy(t, s, delta)
			fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // an old connection keeps the old routes
			answers := func(want string) func() bool {
				return func() bool {
					resp, err := fresh.Get("http://" + address)
					if err != nil {
						return false
					}
					defer resp.Body.Close()
					body, _ := io.ReadAll(resp.Body)
					return string(body) == want
				}
			}
			eventually(t, "first answer", answers("one"))
			put(t, dir, "a.yaml", text("direct_response: { status: 200, body: { inline_string: two } }"))
			if took := eventually(t, "edit", answers("two")); took > time.Second {
				t.Errorf("an edit was live after %v, want within 1 s", took)
			}
			// A new cluster and the route to it in one edit: Envoy refuses a route to a cluster that it does not have yet.
			put(t, dir, "a.yaml", text("route: { cluster: later }")+"  clusters: [{ name: later, type: STATIC, load_assignment: { cluster_name: later } }]\n")
			if took := eventually(t, "new cluster", answers("no healthy upstream")); took > time.Second {
				t.Errorf("an edit with a cluster was live after %v, want within 1 s", took)
			}
			if p := s.Problems(); len(p) > 0 {
				t.Errorf("Problems() = %v, want none", p)
			}

			_, takenPort, _ := net.SplitHostPort(taken.Addr().String())
			put(t, dir, "b.yaml", strings.NewReplacer("name: main", "name: second", "PORT", takenPort, "ACTION", "direct_response: { status: 200 }").Replace(directText))
			eventually(t, "rejection", func() bool { return len(s.Problems()) > 0 })
			want := fmt.Sprintf("%s/b.yaml:3: listener second: Envoy rejected it: cannot bind '%s': Address already in use", dir, taken.Addr())
			if p := s.Problems(); len(p) != 1 || p[0].Error() != want {
				t.Errorf("Problems() = %v, want %s", p, want)
			}
			if !answers("no healthy upstream")() {
				t.Error("the other listener no longer answers")
			}
			taken.Close()
			put(t, dir, "b.yaml", "# nothing here\n")
			eventually(t, "mended", func() bool { return len(s.Problems()) == 0 })
		})
	}
}
