package xdstest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// IstiodConfig is what a fake istiod is started with.
type IstiodConfig struct {
	Address   string              // where it listens; default: a free port of 127.0.0.1
	TLS       *tls.Certificate    // its certificate; nil: plain text, where nobody's identity is verified (istiod's port 15010)
	ClientCAs *x509.CertPool      // of client certificates that it takes instead of a token
	Tokens    map[string]Identity // bearer tokens that it takes
	Header    map[string]string   // metadata that every stream must have
	Clusters  []string            // ids of the clusters it knows; default Kubernetes
	NoPCDS    bool                // it does not answer requests for PCDS
	NoHealth  bool                // nobody should tell it its health: there is no readiness probe
	CA        *CA                 // served at the same address; its roots take the place of ClientCAs
	Mistake   func(what string)   // told of what the real one suffers but no client should do; default: it fails the test
}

// Identity is who a token or a client certificate stands for.
type Identity struct{ Namespace, ServiceAccount string }

// Istiod is a fake of istiod's discovery service, over real TCP and TLS. It serves what the test sets, in both protocols, and treats nodes,
// identities, nonces and names as the real one does: what that refuses is refused here, what it ignores is ignored, and what it logs as a
// client's mistake fails the test. Its methods may be called from any goroutine.
type Istiod struct {
	Address string

	t      testing.TB
	config IstiodConfig
	stop   func()

	mu    sync.Mutex
	world world
	cert  *tls.Certificate
	conns map[*istiodConn]struct{}
	log   []string
	seen  []Request // all requests, in order; without their bytes
	count int       // streams
}

// world is what istiod knows. Its maps are replaced, never changed.
type world struct {
	version int
	byType  map[string]map[string]proto.Message // type URL → name → resource
	secrets map[string]secret                   // "kubernetes://…" → TLS secret
	pulls   map[string][]byte                   // "kubernetes://…" → content of a pull secret
	roots   []string                            // PEM, told by PCDS
	names   []byte                              // the name table, told by NDS
}

// secret is a TLS secret and who may have it.
type secret struct {
	cert, key []byte
	namespace string
}

// NewIstiod starts one.
func NewIstiod(t testing.TB, config IstiodConfig) *Istiod {
	t.Helper()
	if config.Clusters == nil {
		config.Clusters = []string{"Kubernetes"}
	}
	if config.Mistake == nil {
		config.Mistake = func(what string) { t.Error(what) }
	}
	c := &Istiod{
		t: t, config: config, cert: config.TLS, conns: make(map[*istiodConn]struct{}),
		world: world{version: 1, byType: map[string]map[string]proto.Message{}, secrets: map[string]secret{}, pulls: map[string][]byte{}},
	}
	c.Address = config.Address
	if c.Address == "" {
		c.Address = "127.0.0.1:0"
	}
	c.Start()
	t.Cleanup(func() { c.stop() })
	return c
}

// Start serves (again).
func (c *Istiod) Start() {
	c.t.Helper()
	listener, err := net.Listen("tcp", c.Address)
	for deadline := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(deadline); listener, err = net.Listen("tcp", c.Address) {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.Address = listener.Addr().String()
	options := []grpc.ServerOption{grpc.WaitForHandlers(true), grpc.KeepaliveEnforcementPolicy(istiodPings), grpc.ForceServerCodecV2(bytesCodec{}), grpc.MaxRecvMsgSize(maxSize), grpc.MaxSendMsgSize(maxSize)}
	if c.config.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(c.tls())))
	}
	server := grpc.NewServer(options...)
	server.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
		{StreamName: method(false), ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error { return c.serve(s, false) }},
		{StreamName: method(true), ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error { return c.serve(s, true) }},
	}}, nil)
	if c.config.CA != nil {
		c.config.CA.Register(server)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	c.stop = sync.OnceFunc(func() {
		server.Stop()
		<-served
	})
}

// Stop ends every stream and frees the address.
func (c *Istiod) Stop() { c.stop() }

func (c *Istiod) tls() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		clients := c.config.ClientCAs
		if c.config.CA != nil {
			clients = c.config.CA.tls().ClientCAs
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*c.cert}, NextProtos: []string{"h2"},
			ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: clients,
		}, nil
	}}
}

// UseCertificate replaces its certificate for new connections.
func (c *Istiod) UseCertificate(cert *tls.Certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cert = cert
}

// UseTokens replaces the tokens that it takes.
func (c *Istiod) UseTokens(tokens map[string]Identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.config.Tokens = tokens
}

// Set publishes these resources of Envoy's, and no others.
func (c *Istiod) Set(resources ...proto.Message) {
	byType := map[string]map[string]proto.Message{}
	for _, r := range resources {
		typeURL := "type.googleapis.com/" + string(r.ProtoReflect().Descriptor().FullName())
		if byType[typeURL] == nil {
			byType[typeURL] = map[string]proto.Message{}
		}
		byType[typeURL][resourceName(r)] = proto.Clone(r)
	}
	c.change(func(w *world) { w.byType = byType }, dirty{CDS: nil, EDS: nil, LDS: nil, RDS: nil, ECDS: nil, NDS: nil})
}

// resourceName is the name that a resource is asked for.
func resourceName(r proto.Message) string {
	switch r := r.(type) {
	case interface{ GetClusterName() string }:
		return r.GetClusterName()
	case interface{ GetName() string }:
		return r.GetName()
	}
	panic(fmt.Sprintf("xdstest: %T has no name", r))
}

// SetSecret makes a TLS secret, named as "kubernetes://…", known to the workloads of one namespace.
func (c *Istiod) SetSecret(name, namespace string, cert, privateKey []byte) {
	key, s := secretKey(name, namespace), secret{cert, privateKey, namespace}
	c.change(func(w *world) { w.secrets = with(w.secrets, key, s) }, dirty{SDS: {key: true}})
}

// SetPullSecret makes a Wasm pull secret known, by the "kubernetes://…" with which extension configs refer to it.
func (c *Istiod) SetPullSecret(name string, content []byte) {
	c.change(func(w *world) { w.pulls = with(w.pulls, name, content) }, dirty{ECDS: nil})
}

// SetRoots sets the trust bundle that PCDS tells. Everything is pushed.
func (c *Istiod) SetRoots(pem ...string) { c.change(func(w *world) { w.roots = pem }) }

// dirty is what is to be pushed: types, and of each the names, if not all.
type dirty map[string]map[string]bool

func everything() dirty {
	all := dirty{}
	for _, typeURL := range pushOrder {
		all[typeURL] = nil
	}
	return all
}

// and adds more.
func (d dirty) and(more dirty) {
	for typeURL, names := range more {
		if had, ok := d[typeURL]; names == nil || ok && had == nil {
			d[typeURL] = nil
		} else {
			d[typeURL] = merged(had, names)
		}
	}
}

func merged(sets ...map[string]bool) map[string]bool {
	all := map[string]bool{}
	for _, set := range sets {
		maps.Copy(all, set)
	}
	return all
}

func with[V any](m map[string]V, key string, value V) map[string]V {
	changed := map[string]V{key: value}
	for k, v := range m {
		if k != key {
			changed[k] = v
		}
	}
	return changed
}

// change makes a new version of the world and has every connection push what it watches of that; of everything, if it is not said what.
func (c *Istiod) change(f func(*world), what ...dirty) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.world)
	c.world.version++
	if what == nil {
		what = []dirty{everything()}
	}
	for conn := range c.conns {
		for _, some := range what {
			conn.dirty.and(some)
		}
		select {
		case conn.changed <- struct{}{}:
		default: // it has not pushed the last version yet
		}
	}
}

func (c *Istiod) now() world {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.world
}

// Forget loses the streams that are open: they stay, and what they ask is answered, but they hear of no change.
func (c *Istiod) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.conns)
}

// Connected tells how many streams are open, and how many there were in all.
func (c *Istiod) Connected() (open, all int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.conns), c.count
}

// Requests are all requests of a type so far.
func (c *Istiod) Requests(typeURL string) (all []Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.seen {
		if r.Type == typeURL {
			all = append(all, r)
		}
	}
	return all
}

// Transcript is what was asked and answered: types, names, versions and nonces, no contents.
func (c *Istiod) Transcript() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.log, "\n")
}

func (c *Istiod) notef(conn *istiodConn, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, fmt.Sprintf("%s stream %d %s", time.Now().Format("15:04:05.000"), conn.id, fmt.Sprintf(format, args...)))
}

// caller is who opened a stream.
type caller struct {
	Identity
	verified bool
}

// authenticate does what istiod's authenticators do: nothing without TLS; a client certificate first, then a token, of the cluster that the
// client names.
func (c *Istiod) authenticate(ctx context.Context) (caller, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	var who caller
	if c.config.TLS == nil {
		return who, nil
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
			if identity, ok := spiffe(info.State.VerifiedChains[0][0]); ok {
				return who.as(identity), nil
			}
		}
	}
	if cluster := namedCluster(md); cluster != "" && !slices.Contains(c.config.Clusters, cluster) {
		return caller{}, status.Errorf(codes.Unauthenticated, "authentication failure: could not get cluster %q's kube client", cluster)
	}
	c.mu.Lock()
	identity, known := c.config.Tokens[bearer(md)]
	c.mu.Unlock()
	if known {
		return who.as(identity), nil
	}
	return caller{}, status.Error(codes.Unauthenticated, "authentication failure")
}

// namedCluster is the cluster in which a call's token is to be looked up; "" for the primary one, when none is named, or several are.
func namedCluster(md metadata.MD) string {
	if cluster := md.Get("clusterid"); len(cluster) == 1 {
		return cluster[0]
	}
	return ""
}

// bearer is the first token of a call; "" when it has none.
func bearer(md metadata.MD) string {
	for _, value := range md.Get("authorization") {
		if token, ok := strings.CutPrefix(value, "Bearer "); ok {
			return token
		}
	}
	return ""
}

func (who caller) as(identity Identity) caller {
	who.Identity, who.verified = identity, true
	return who
}

// spiffe reads spiffe://<trust domain>/ns/<namespace>/sa/<service account>.
func spiffe(cert *x509.Certificate) (Identity, bool) {
	for _, uri := range cert.URIs {
		parts := strings.Split(strings.Trim(uri.Path, "/"), "/")
		if uri.Scheme == "spiffe" && len(parts) == 4 && parts[0] == "ns" && parts[2] == "sa" {
			return Identity{parts[1], parts[3]}, true
		}
	}
	return Identity{}, false
}
