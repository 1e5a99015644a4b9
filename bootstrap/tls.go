package bootstrap

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// TLS is how a Remote is called.
type TLS struct {
	ServerName string   // SNI; "" = none
	SANs       []string // one of which its certificate must have; none = any
	RootFile   string   // PEM; "" = its certificate is not checked
	CertFile   string   // client certificate; "" = none
	KeyFile    string
	Workload   bool // with the workload's certificate and roots, which come over SDS, instead of files
}

// Names of the workload's secrets.
const (
	secretDefault = "default"
	secretRoots   = "ROOTCA"
)

func (t *TLS) socket() *corev3.TransportSocket {
	if t == nil {
		return nil
	}
	common := &tlsv3.CommonTlsContext{}
	if t.Workload {
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{secret(secretDefault)}
	} else if t.CertFile != "" {
		common.TlsCertificates = []*tlsv3.TlsCertificate{{CertificateChain: file(t.CertFile), PrivateKey: file(t.KeyFile)}}
	}
	t.validate(common)
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: mustAny(&tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: t.ServerName}),
	}}
}

func (t *TLS) validate(common *tlsv3.CommonTlsContext) {
	validation := &tlsv3.CertificateValidationContext{}
	for _, san := range t.SANs {
		for _, kind := range []tlsv3.SubjectAltNameMatcher_SanType{tlsv3.SubjectAltNameMatcher_DNS, tlsv3.SubjectAltNameMatcher_URI} {
			validation.MatchTypedSubjectAltNames = append(validation.MatchTypedSubjectAltNames, &tlsv3.SubjectAltNameMatcher{
				SanType: kind,
				Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: san}},
			})
		}
	}
	if t.Workload {
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: validation, ValidationContextSdsSecretConfig: secret(secretRoots),
			},
		}
		return
	}
	if t.RootFile == "" {
		return // a name in a certificate that nobody vouches for says nothing
	}
	validation.TrustedCa = file(t.RootFile)
	common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation}
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

func secret(name string) *tlsv3.SdsSecretConfig {
	source := &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType:                   corev3.ApiConfigSource_GRPC,
			TransportApiVersion:       corev3.ApiVersion_V3,
			SetNodeOnFirstMessageOnly: true,
			GrpcServices:              []*corev3.GrpcService{grpcService(ClusterSDS)},
		}},
		InitialFetchTimeout: durationpb.New(0),
		ResourceApiVersion:  corev3.ApiVersion_V3,
	}
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: source}
}
