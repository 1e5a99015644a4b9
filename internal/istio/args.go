package istio

import "github.com/spf13/pflag"

// Args are pilot-agent's flags of `proxy`.
type Args struct {
	Domain                 string
	MeshConfig             string
	STSPort                int
	TokenManagerPlugin     string
	ServiceCluster         string
	ProxyLogLevel          string
	ProxyComponentLogLevel string
	Concurrency            int
	TemplateFile           string
	OutlierLogPath         string
	Profiling              bool
	Log                    LogArgs
}

// LogArgs are pilot-agent's logging flags, which all its commands have.
type LogArgs struct {
	OutputLevel string
	AsJSON      bool
	Caller      string
	StackLevel  string
	Targets     []string
	Rotate      string
	Klog        string
	Others      [3]int // of rotation
}

const (
	defaultServiceCluster = "istio-proxy"
	defaultProxyLogLevel  = "warning,misc:error"
	defaultMeshConfig     = "./etc/istio/config/mesh"
	defaultTokenPlugin    = "GoogleTokenExchange"
	defaultStackLevel     = "default:none"
	defaultLogTarget      = "stdout"
)

// Flags are the flags of `proxy`, with pilot-agent's names and defaults.
func (a *Args) Flags(f *pflag.FlagSet) {
	f.StringVar(&a.Domain, "domain", "", "DNS domain suffix (default $POD_NAMESPACE.svc.cluster.local)")
	f.StringVar(&a.MeshConfig, "meshConfig", defaultMeshConfig, "mesh configuration file")
	f.StringVar(&a.ServiceCluster, "serviceCluster", defaultServiceCluster, "Envoy's node cluster")
	f.StringVar(&a.ProxyLogLevel, "proxyLogLevel", defaultProxyLogLevel, "Envoy's log level, with scope:level after commas")
	f.StringVar(&a.ProxyComponentLogLevel, "proxyComponentLogLevel", "", "Envoy's log levels by scope")
	f.IntVar(&a.Concurrency, "concurrency", 0, "Envoy's worker threads (default: ProxyConfig, else the CPU limit)")
	f.StringVar(&a.OutlierLogPath, "outlierLogPath", "", "where Envoy logs outlier detection")
	f.StringVar(&a.TemplateFile, "templateFile", "", "ignored: there is no bootstrap template here")
	f.IntVar(&a.STSPort, "stsPort", 0, "ignored: there is no token exchange here")
	f.StringVar(&a.TokenManagerPlugin, "tokenManagerPlugin", defaultTokenPlugin, "ignored, as --stsPort")
	f.BoolVar(&a.Profiling, "profiling", true, "ignored: profiles are on the control socket")
	a.Log.Flags(f)
}

// Flags are the logging flags.
func (l *LogArgs) Flags(f *pflag.FlagSet) {
	f.StringVar(&l.OutputLevel, "log_output_level", "default:info", "the agent's log level")
	f.BoolVar(&l.AsJSON, "log_as_json", false, "log as JSON")
	f.StringVar(&l.Caller, "log_caller", "", "ignored")
	f.StringVar(&l.StackLevel, "log_stacktrace_level", defaultStackLevel, "ignored")
	f.StringArrayVar(&l.Targets, "log_target", []string{defaultLogTarget}, "ignored: the log is on stderr")
	f.StringVar(&l.Rotate, "log_rotate", "", "ignored: the log is on stderr")
	f.StringVar(&l.Klog, "vklog", "0", "ignored")
	f.IntVar(&l.Others[0], "log_rotate_max_age", 30, "ignored")
	f.IntVar(&l.Others[1], "log_rotate_max_backups", 1000, "ignored")
	f.IntVar(&l.Others[2], "log_rotate_max_size", 104857600, "ignored")
}
