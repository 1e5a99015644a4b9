package bootstrap

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TLS is how a Remote is called. The agent serves the files, so that they may come late and be replaced.
type TLS struct {
	ServerName string   // SNI; "" = none, with Workload that of the Remote's purpose
	SANs       []string // one of which its certificate must have; none = any
	RootFile   string   // PEM; "" = its certificate is not checked
	CertFile   string   // client certificate; "" = none
	KeyFile    string
	Workload   bool // with the workload's certificate and roots instead of files
}

// Names of secrets that the agent serves.
const (
	secretDefault = "default"
	secretRoots   = "ROOTCA"
	secretPair    = "file-cert:" // and two files, with a ~ between
	secretRoot    = "file-root:"
)

// secretWait is how long Envoy's start waits for a secret of a static cluster or listener. Without it metrics would hold up the gateway.
const secretWait = 2 * time.Second

const tlsSocket = "envoy.transport_sockets.tls"

// Protocols that TLS offers: who calls a gRPC server without one is refused by many. By the first, sidecars know the mesh's own traffic.
var (
	offerHTTP2 = []string{"h2"}
	offerMesh  = []string{"istio", "h2"}
)

// socket is nil without TLS.
func (t *TLS) socket(name string, h2 bool) *corev3.TransportSocket {
	if t == nil {
		return nil
	}
	validation := &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: sanMatchers(t.SANs)}
	config := &tlsv3.UpstreamTlsContext{Sni: t.ServerName}
	if t.Workload {
		config.CommonTlsContext = meshContext(validation)
		config.Sni = orDefault(t.ServerName, name)
	} else {
		config.CommonTlsContext = t.filesContext(validation)
	}
	switch {
	case h2 && t.Workload:
		config.CommonTlsContext.AlpnProtocols = offerMesh
	case h2:
		config.CommonTlsContext.AlpnProtocols = offerHTTP2
	}
	return &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: mustAny(config)}}
}

func (t *TLS) filesContext(validation *tlsv3.CertificateValidationContext) *tlsv3.CommonTlsContext {
	common := &tlsv3.CommonTlsContext{}
	if t.CertFile != "" {
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{secret(secretPair + t.CertFile + "~" + t.KeyFile)}
	}
	if t.RootFile != "" { // else a name in a certificate that nobody vouches for says nothing
		common.ValidationContextType = combined(validation, secretRoot+t.RootFile)
	}
	return common
}

// meshSocket is for clients with a certificate of the mesh, whoever of it they are.
func meshSocket() *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: mustAny(&tlsv3.DownstreamTlsContext{
			CommonTlsContext:         meshContext(&tlsv3.CertificateValidationContext{}),
			RequireClientCertificate: wrapperspb.Bool(true),
		}),
	}}
}

// meshContext has the workload's certificate and roots.
func meshContext(validation *tlsv3.CertificateValidationContext) *tlsv3.CommonTlsContext {
	return &tlsv3.CommonTlsContext{
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secret(secretDefault)},
		ValidationContextType:          combined(validation, secretRoots),
	}
}

func combined(validation *tlsv3.CertificateValidationContext, roots string) *tlsv3.CommonTlsContext_CombinedValidationContext {
	return &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext: validation, ValidationContextSdsSecretConfig: secret(roots),
		},
	}
}

func sanMatchers(names []string) (all []*tlsv3.SubjectAltNameMatcher) {
	for _, san := range names {
		for _, kind := range []tlsv3.SubjectAltNameMatcher_SanType{tlsv3.SubjectAltNameMatcher_DNS, tlsv3.SubjectAltNameMatcher_URI} {
			all = append(all, &tlsv3.SubjectAltNameMatcher{
				SanType: kind,
				Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: san}},
			})
		}
	}
	return all
}

func secret(name string) *tlsv3.SdsSecretConfig {
	source := &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType:                   corev3.ApiConfigSource_GRPC,
			TransportApiVersion:       corev3.ApiVersion_V3,
			SetNodeOnFirstMessageOnly: true,
			GrpcServices:              []*corev3.GrpcService{grpcService(ClusterSDS)},
		}},
		InitialFetchTimeout: durationpb.New(secretWait),
		ResourceApiVersion:  corev3.ApiVersion_V3,
	}
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: source}
}
