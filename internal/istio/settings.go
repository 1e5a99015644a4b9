package istio

import "time"

// Settings are what a gateway pod asks of the agent, in the agent's terms. Paths are absolute.
type Settings struct {
	NodeID      string
	NodeCluster string
	Locality    Locality
	Metadata    map[string]any // JSON values

	ControlPlane    Server
	StateOfTheWorld bool   // not delta
	CA              Server // no address: certificates come from files only
	Workload        Workload

	ReportHealth bool // ProxyConfig has a readiness probe: istiod wants to know
	TrustToo     bool // whom istiod says to trust (PCDS) counts beside mounted roots

	DNSAddress  string // host:port, the host an address, localhost or empty; "" = no DNS server
	DNSDomain   string // NAMESPACE.svc.CLUSTERDOMAIN
	DNSParallel bool   // all other name servers are asked at once
	DNSTimeout  time.Duration

	RunDir             string // sockets that pilot-agent has not
	DataDir            string
	BootstrapFile      string
	XDSSocket          string
	SDSSocket          string
	WorkloadSocket     string // where somebody else's SDS server may serve the workload's certificate; may be SDSSocket
	WorkloadSocketMust bool   // nobody else shall
	WorkloadGKE        bool   // nor anything but the files of Google's platform
	CredentialSocket   string // somebody else's SDS server for gateway certificates (sds://…); "" = none
	AdminAddress       string // host:port
	StatusAddress      string
	ReadyAddress       string
	PrometheusAddress  string
	MetricsLocalOnly   bool // metrics are for loopback only

	SecurePrometheusAddress string // Envoy's metrics for clients with a certificate of the mesh; "" = nowhere
	SecureMetricsAddress    string // the same for those of StatusAddress
	DualStack               bool   // Envoy's own listeners on both IP families
	ReadyProxyProtocol      bool   // a PROXY header may come first on ReadyAddress
	PlainMetrics            bool   // PrometheusAddress does not compress

	Envoy             string // path of the binary
	EnvoyNone         bool   // DISABLE_ENVOY
	EnvoyArgs         []string
	Concurrency       int // 0 = Envoy's choice
	EnvoyLogLevel     string
	ComponentLogLevel string // scope:level,…
	LogLevel          string
	LogFormat         string // text or json

	DrainDelay    time.Duration
	DrainMin      time.Duration
	DrainTimeout  time.Duration
	ListenerDrain time.Duration

	InsecureRegistries []string
	ModuleExpiry       time.Duration // how long an unused module stays; 0 = not said
	ModuleSize         int           // bytes of the largest module that is accepted; 0 = not said

	Statistics Statistics
	Telemetry  Telemetry
	Runtime    map[string]any // Envoy's static runtime layer
	Overlays   []string       // bootstrap files merged over ours
	OutlierLog string
	Discovery  bool // Istio's peer metadata discovery, which needs Istio's build of Envoy

	HostIP         string // what $(HOST_IP) in Overlays stands for
	MaxConnections int    // of clients
	LocalCluster   bool   // for zone-aware balancing
	LoadReports    string // JSON: Envoy's cluster_manager.load_stats_config
}

// Locality is where the node is.
type Locality struct{ Region, Zone, SubZone string }

// Server is how to reach istiod, for configuration or for certificates.
type Server struct {
	Address        string // host:port
	Plaintext      bool
	ServerName     string            // "" = the host of Address
	RootFile       string            // "" = the system's roots
	TokenFile      string            // "" = none; a missing file is no error
	PlaintextToken bool              // send the token over plaintext too
	CertFile       string            // client certificate; "" = none
	KeyFile        string            // its key
	Header         map[string]string // gRPC metadata
}

// Workload is whose certificate is asked for, and how.
type Workload struct {
	TrustDomain    string
	Namespace      string // "" = not known
	ServiceAccount string // "" = not known
	CertSigner     string
	TTL            time.Duration
	GraceRatio     float64 // the last part of a lifetime in which it is renewed
	GraceJitter    float64 // ± of GraceRatio
	KeyType        string  // "rsa" or "ecdsa"
	RSABits        int
	Curve          string // P256 or P384
	PKCS8          bool
	CRLFile        string // revocation lists, used while it exists
	OutputDir      string // where the certificate is written for others; "" = nowhere
	OutputShared   bool   // any user may read the key there: in a pod, other containers run as other users
}

// Statistics is what Envoy keeps and how it is labelled.
type Statistics struct {
	Tags        []Tag
	Prefixes    []string // of statistics that are kept
	Suffixes    []string
	Expressions []string // regular expressions, same meaning
	Buckets     []Buckets
	Flush       time.Duration // how often; 0 = Envoy's choice
	Eviction    time.Duration // when what nobody touches is forgotten; 0 = never
}

// Tag takes a label out of a statistic's name: the expression's first group is cut out, the second is the value.
type Tag struct{ Name, Expression string }

// Buckets are the histogram buckets of statistics with a name that starts with Prefix.
type Buckets struct {
	Prefix string
	Bounds []float64
}

// Telemetry is where Envoy sends what it knows.
type Telemetry struct {
	Tracer           string // "", "zipkin" or "datadog"
	Trace            Remote
	Statsd           string // host:port, UDP
	MetricsService   Remote
	AccessLogService Remote
	OnlyIPv6         bool // names are resolved to nothing else
}

// Remote is a service that Envoy calls by name.
type Remote struct {
	Address   string // host:port
	TLS       *TLS   // nil = none
	Keepalive Keepalive
}

// Keepalive is TCP's; 0 = the system's.
type Keepalive struct {
	Probes         uint32
	Time, Interval time.Duration
}

// TLS is how a Remote is called.
type TLS struct {
	ServerName string
	SANs       []string
	RootFile   string // "" = not verified, as with Istio
	CertFile   string
	KeyFile    string
	Workload   bool // with the workload's own certificate and roots, from SDS
}
