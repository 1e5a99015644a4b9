package xdstest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
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
	"google.golang.org/protobuf/types/known/structpb"
	pb "istio.io/api/security/v1alpha1"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

const (
	caBackdate = 2 * time.Minute     // how long before the issue istiod lets a certificate begin
	caLife     = 24 * time.Hour      // what it signs for when nothing is asked
	caMaxLife  = 90 * 24 * time.Hour // istiod refuses to sign for longer
)

// CAConfig is what a fake certificate authority expects of its clients.
type CAConfig struct {
	ID         string            // SPIFFE id that token and certificate stand for; required
	Tokens     []string          // bearer tokens that are good; none: only client certificates are
	ClusterID  string            // the only cluster it knows; a client that names none is let in, as istiod does; default "Kubernetes"
	Header     map[string]string // further headers that every request must have
	CertSigner string            // what the metadata must say
	Life       time.Duration     // of certificates, from their issue; default: as asked
	ServerName string            // in its own certificate; default "istiod.istio-system.svc"
	Mistake    func(what string) // told of what istiod takes but no client should send; default: it fails the test
}

// CA is a fake of istiod's certificate authority. It refuses what istiod refuses; what istiod takes but no client should send fails the
// test. Its methods may be called from any goroutine.
type CA struct {
	pb.UnimplementedIstioCertificateServiceServer
	t testing.TB

	mu       sync.Mutex
	cfg      CAConfig
	signer   *testca.CA   // what it signs with
	extra    []*testca.CA // roots in its answers beside the signer's
	refuse   error
	delay    time.Duration
	ahead    time.Duration // of everybody else's clock
	mangle   func(chain []string) []string
	own      *tls.Certificate // of its server
	requests []CARequest
}

// CARequest is one request that came.
type CARequest struct {
	At      time.Time
	Token   string // bearer token; "" none
	Peer    string // SPIFFE id of the client certificate; "" none
	Life    time.Duration
	CSR     *x509.CertificateRequest
	Granted bool
}

// NewCA makes one with a root of its own.
func NewCA(t testing.TB, cfg CAConfig) *CA {
	t.Helper()
	if cfg.ClusterID == "" {
		cfg.ClusterID = "Kubernetes"
	}
	if cfg.ServerName == "" {
		cfg.ServerName = "istiod.istio-system.svc"
	}
	if cfg.Mistake == nil {
		cfg.Mistake = func(what string) { t.Error(what) }
	}
	ca := &CA{t: t, cfg: cfg}
	ca.SignWith(testca.New(t, "root"))
	return ca
}

// Register adds the service to a gRPC server.
func (ca *CA) Register(r grpc.ServiceRegistrar) { pb.RegisterIstioCertificateServiceServer(r, ca) }

// Listen serves on a loopback port, with TLS, until the test ends, and returns its address.
func (ca *CA) Listen(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ca.ServeTLS(t, l)
	return l.Addr().String()
}

// ServeTLS serves a listener until the test ends. Inside a synctest bubble that is one in memory.
func (ca *CA) ServeTLS(t testing.TB, l net.Listener) {
	t.Helper()
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return ca.tls(), nil }}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	ca.Register(server)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
}

func (ca *CA) tls() *tls.Config {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	clients := x509.NewCertPool()
	for _, root := range ca.rootsLocked() {
		clients.AddCert(root.Cert)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*ca.own}, NextProtos: []string{"h2"},
		ClientCAs: clients, ClientAuth: tls.VerifyClientCertIfGiven,
	}
}

// SignWith makes a CA the one that certificates, the server's own included, are signed with from now on. extra are further roots that
// its answers hold: the overlap of a rotation.
func (ca *CA) SignWith(signer *testca.CA, extra ...*testca.CA) {
	ca.t.Helper()
	pair := signer.Issue(ca.t, testca.Leaf{Name: "istiod", Hosts: []string{ca.cfg.ServerName, "localhost", "127.0.0.1"}, NotAfter: time.Now().AddDate(1, 0, 0)})
	own, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		ca.t.Fatal(err)
	}
	ca.mu.Lock()
	defer ca.mu.Unlock()
	ca.signer, ca.extra, ca.own = signer, extra, &own
}

// Signer is what it signs with.
func (ca *CA) Signer() *testca.CA {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	return ca.signer
}

// Refuse makes every request fail with err, until Refuse(nil).
func (ca *CA) Refuse(err error) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	ca.refuse = err
}

// Delay makes every answer wait.
func (ca *CA) Delay(d time.Duration) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	ca.delay = d
}

// Ahead sets the clock that certificates are dated by, before that of everybody else.
func (ca *CA) Ahead(d time.Duration) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	ca.ahead = d
}

// Mangle changes every answer before it goes out; nil: none.
func (ca *CA) Mangle(f func(chain []string) []string) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	ca.mangle = f
}

// Accept replaces the tokens that are good.
func (ca *CA) Accept(tokens ...string) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	ca.cfg.Tokens = tokens
}

// SetLife replaces the life of certificates; 0: as asked.
func (ca *CA) SetLife(d time.Duration) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	ca.cfg.Life = d
}

// Requests lists what came so far.
func (ca *CA) Requests() []CARequest {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	return slices.Clone(ca.requests)
}

// CreateCertificate implements the service.
func (ca *CA) CreateCertificate(ctx context.Context, req *pb.IstioCertificateRequest) (*pb.IstioCertificateResponse, error) {
	ca.mu.Lock()
	delay := ca.delay
	ca.mu.Unlock()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	ca.mu.Lock()
	defer ca.mu.Unlock()
	r := CARequest{At: time.Now(), Life: time.Duration(req.GetValidityDuration()) * time.Second}
	chain, err := ca.answerLocked(ctx, req, &r)
	r.Granted = err == nil
	ca.requests = append(ca.requests, r)
	if err != nil {
		return nil, err
	}
	return &pb.IstioCertificateResponse{CertChain: chain}, nil
}

func (ca *CA) answerLocked(ctx context.Context, req *pb.IstioCertificateRequest, r *CARequest) ([]string, error) {
	if err := ca.authenticateLocked(ctx, r); err != nil {
		return nil, err
	}
	if ca.refuse != nil {
		return nil, ca.refuse
	}
	if err := ca.checkLocked(req, r); err != nil {
		ca.mistake("%v", err)
	}
	if r.CSR == nil {
		return nil, status.Error(codes.InvalidArgument, "CSR signing error")
	}
	if r.Life > caMaxLife {
		return nil, status.Errorf(codes.InvalidArgument, "requested TTL %v is greater than the max allowed TTL %v", r.Life, caMaxLife)
	}
	chain, err := ca.signLocked(r)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if ca.mangle != nil {
		chain = ca.mangle(chain)
	}
	return chain, nil
}

func (ca *CA) mistake(format string, args ...any) {
	ca.cfg.Mistake("certificate authority: " + fmt.Sprintf(format, args...))
}

// authenticateLocked does as istiod: the client certificate first, then the token, which is looked up in the cluster named.
func (ca *CA) authenticateLocked(ctx context.Context, r *CARequest) error {
	md, _ := metadata.FromIncomingContext(ctx)
	for name, want := range ca.cfg.Header {
		if got := md.Get(name); !slices.Equal(got, []string{want}) {
			ca.mistake("header %s is %q, want %q", name, got, want)
		}
	}
	r.Token = bearer(md)
	if got := md.Get("authorization"); len(got) > 1 || len(got) == 1 && r.Token == "" {
		ca.mistake("the authorization is %d headers, or no bearer token", len(got))
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
			if uris := info.State.VerifiedChains[0][0].URIs; len(uris) == 1 {
				r.Peer = uris[0].String()
			}
		}
	}
	if r.Peer != "" {
		if r.Peer != ca.cfg.ID {
			return status.Error(codes.Unauthenticated, "authentication failure")
		}
		return nil
	}
	if cluster := namedCluster(md); cluster != "" && cluster != ca.cfg.ClusterID {
		return status.Errorf(codes.Unauthenticated, "client for cluster %q not found", cluster)
	}
	if r.Token == "" || !slices.Contains(ca.cfg.Tokens, r.Token) {
		return status.Error(codes.Unauthenticated, "authentication failure")
	}
	return nil
}

// checkLocked is what a client of istiod owes. It sets the request's CSR to what istiod would sign.
func (ca *CA) checkLocked(req *pb.IstioCertificateRequest, r *CARequest) error {
	block, rest := pem.Decode([]byte(req.GetCsr()))
	if block == nil {
		return errors.New("the csr is no PEM block")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return fmt.Errorf("the csr cannot be parsed: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return fmt.Errorf("the csr's signature: %w", err)
	}
	r.CSR = csr
	if block.Type != "CERTIFICATE REQUEST" || len(strings.TrimSpace(string(rest))) > 0 {
		return errors.New("the csr is not one PEM block CERTIFICATE REQUEST")
	}
	signer, ok := req.GetMetadata().GetFields()["CertSigner"]
	if !ok {
		return errors.New("the metadata has no CertSigner")
	}
	if text, ok := signer.GetKind().(*structpb.Value_StringValue); !ok || text.StringValue != ca.cfg.CertSigner {
		return fmt.Errorf("CertSigner is %v, want %q", signer, ca.cfg.CertSigner)
	}
	if r.Life <= 0 {
		return fmt.Errorf("validity is %v", r.Life)
	}
	return checkSubject(csr, ca.cfg.ID)
}

func checkSubject(csr *x509.CertificateRequest, id string) error {
	switch {
	case csr.Subject.CommonName != "" || strings.Join(csr.Subject.Organization, "") != "":
		return fmt.Errorf("the csr's subject is %q, want empty", csr.Subject)
	case len(csr.DNSNames)+len(csr.IPAddresses)+len(csr.EmailAddresses) > 0:
		return errors.New("the csr has names that are no URI")
	case len(csr.URIs) != 1 || csr.URIs[0].String() != id:
		return fmt.Errorf("the csr asks for %v, want only %s", csr.URIs, id)
	}
	return nil
}

// signLocked makes a chain as istiod does: leaf, intermediates, roots in one text.
func (ca *CA) signLocked(r *CARequest) ([]string, error) {
	life := ca.cfg.Life
	if life == 0 {
		life = r.Life
	}
	if life <= 0 {
		life = caLife
	}
	leaf := testca.Leaf{Nameless: true, Hosts: []string{ca.cfg.ID}, NotBefore: r.At.Add(ca.ahead - caBackdate), NotAfter: r.At.Add(ca.ahead + life)}
	_, text, err := ca.signer.Sign(r.CSR.PublicKey, leaf)
	if err != nil {
		return nil, err
	}
	chain := []string{string(text)}
	for block, rest := pem.Decode(ca.signer.Chain()); block != nil; block, rest = pem.Decode(rest) {
		chain = append(chain, string(pem.EncodeToMemory(block)))
	}
	var roots strings.Builder
	for _, root := range ca.rootsLocked() {
		roots.Write(root.PEM)
	}
	return append(chain, roots.String()), nil
}

func (ca *CA) rootsLocked() []*testca.CA { return append([]*testca.CA{ca.signer.Root()}, ca.extra...) }
