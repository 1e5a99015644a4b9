package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// settings are all that `run`, `bootstrap`, `validate` and the commands that find a running agent can be told. Each field is one
// flag; the same name is a key of --config FILE and, as GATEWAY_AGENT_…, a variable of the environment (apply.go).
type settings struct {
	configFile string

	configDir     string
	xdsAddress    string
	xdsMode       string
	xdsCA         string
	xdsServerName string
	xdsPlaintext  bool
	xdsCert       string
	xdsKey        string
	xdsTokenFile  string
	xdsHeader     []string
	xdsMaxAge     time.Duration

	xdsTokenOptional  bool // no token file, no token, and no error (pilot-agent's way); no flag
	xdsTokenPlaintext bool // the token is sent without TLS too (XDS_AUTH_PLAINTEXT); no flag
	xdsAnswers        bool // the control plane answers the first request of a stream in any case, as istiod does; no flag

	dataDir string
	runDir  string

	runDirGuessed bool // nobody said which

	envoy       string
	concurrency int
	nodeID      string
	nodeCluster string
	nodeMeta    []string

	statusAddress     string
	readyAddress      string
	prometheusAddress string

	moduleSettings
	envoySettings
	identitySettings
	dnsSettings
	denied []string // directories below which no certificate is served, besides the agent's own; no flag

	drainDelay   time.Duration
	drainMin     time.Duration
	drainTimeout time.Duration

	logLevel  string
	logFormat string
}

func (s *settings) sourceFlags(f *pflag.FlagSet) {
	f.StringVar(&s.configDir, "config-dir", "", "directory of YAML files to serve: an envoy.yaml, Envoy's filesystem xDS files, or both; watched")
	f.StringVar(&s.xdsAddress, "xds-address", "", "HOST:PORT of the control plane (an ADS server)")
	f.StringVar(&s.xdsMode, "xds-mode", "delta", "xDS variant Envoy is told to speak: delta or sotw")
	f.StringVar(&s.xdsCA, "xds-ca", "", "PEM file of the CAs that may sign the control plane's certificate (default: the system's)")
	f.StringVar(&s.xdsServerName, "xds-server-name", "", "name expected in the control plane's certificate (default: the host of --xds-address)")
	f.BoolVar(&s.xdsPlaintext, "xds-plaintext", false, "talk to the control plane without TLS (loopback needs no asking)")
	f.StringVar(&s.xdsCert, "xds-cert", "", "PEM file of the client certificate, with its chain, shown to the control plane; read at each connect")
	f.StringVar(&s.xdsKey, "xds-key", "", "PEM file of its key")
	f.StringVar(&s.xdsTokenFile, "xds-token-file", "", "file of the bearer token for the control plane; read at each stream, never sent without TLS")
	f.StringArrayVar(&s.xdsHeader, "xds-header", nil, "NAME=VALUE to send to the control plane with each stream; may be repeated")
	f.DurationVar(&s.xdsMaxAge, "xds-max-stream-age", 0, "open a new stream to the control plane after this time, less up to a tenth (default: never)")
}

func (s *settings) dirFlags(f *pflag.FlagSet) {
	s.dataDirFlag(f)
	s.runDirFlag(f)
	s.socketFlags(f)
}

func (s *settings) dataDirFlag(f *pflag.FlagSet) {
	f.StringVar(&s.dataDir, "data-dir", "", "what survives a restart of this agent: modules, accepted plugins (default /var/lib/gateway-agent; not root: the user's state directory)")
	f.StringVar(&s.wasmDir, "wasm-dir", "", "module store, which several agents may share (default wasm in --data-dir)")
}

func (s *settings) runDirFlag(f *pflag.FlagSet) {
	f.StringVar(&s.runDir, "run-dir", "", "sockets and bootstrap of this agent (default /run/gateway-agent; not root: the user's runtime directory)")
}

func (s *settings) nodeFlags(f *pflag.FlagSet) {
	f.StringVar(&s.nodeID, "node-id", "", "Envoy's node id (default: the host name)")
	f.StringVar(&s.nodeCluster, "node-cluster", "gateway", "Envoy's node cluster")
	f.StringArrayVar(&s.nodeMeta, "node-metadata", nil, "K=V to add to Envoy's node metadata; may be repeated")
	s.bootstrapFlags(f)
	f.StringVar(&s.statusAddress, "status-address", "127.0.0.1:15020", "where the agent answers /healthz/ready, /healthz/live and /metrics")
	f.StringVar(&s.readyAddress, "ready-address", "0.0.0.0:15021", "Envoy's own listener for a load balancer's GET /healthz/ready; 'off' for none")
	f.StringVar(&s.prometheusAddress, "prometheus-address", "127.0.0.1:15090", "Envoy's own listener for /stats/prometheus; 'off' for none")
	s.listenerFlags(f)
	s.statusFlags(f)
}

func (s *settings) envoyFlags(f *pflag.FlagSet) {
	f.StringVar(&s.envoy, "envoy", "envoy", "Envoy to run: a path, a name on PATH, or 'none' when something else runs it")
	f.IntVar(&s.concurrency, "concurrency", 0, "Envoy's worker threads (default: Envoy decides)")
	f.DurationVar(&s.drainDelay, "drain-delay", 0, "on SIGTERM: tell clients, fail readiness, but go on accepting this long")
	f.DurationVar(&s.drainMin, "drain-min", 0, "least time to drain after the listeners closed")
	f.DurationVar(&s.drainTimeout, "drain-timeout", 30*time.Second, "most time to wait for requests in flight before Envoy is ended; 0: none")
	s.processFlags(f)
}

func (s *settings) logFlags(f *pflag.FlagSet) {
	f.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error; Envoy's level follows")
	f.StringVar(&s.logFormat, "log-format", "text", "text or json")
}

// complete fills in what depends on the machine and checks everything, so that all problems are told at once.
func (s *settings) complete(env environment) error {
	s.completeDirs(env)
	if s.nodeID == "" {
		s.nodeID, _ = os.Hostname()
	}
	s.readyAddress = strings.TrimPrefix(s.readyAddress, "off")
	s.prometheusAddress = strings.TrimPrefix(s.prometheusAddress, "off")
	return errors.Join(
		s.checkSource(),
		s.completeEnvoy(),
		s.completeIdentity(),
		s.completeDNS(),
		oneOf("--xds-mode", s.xdsMode, "delta", "sotw"),
		s.completeModules(env),
		oneOf("--log-level", s.logLevel, "debug", "info", "warn", "error"),
		oneOf("--log-format", s.logFormat, "text", "json"),
		checkAddress("--status-address", s.statusAddress),
		checkAddress("--ready-address", s.readyAddress),
		checkAddress("--prometheus-address", s.prometheusAddress),
		atLeastZero("--drain-delay", s.drainDelay),
		atLeastZero("--drain-min", s.drainMin),
		atLeastZero("--drain-timeout", s.drainTimeout),
		atLeastZero("--xds-max-stream-age", s.xdsMaxAge),
	)
}

// completeDirs gives --data-dir and --run-dir their defaults and makes them absolute: Envoy gets these paths.
func (s *settings) completeDirs(env environment) {
	if s.dataDir == "" {
		s.dataDir = defaultDir(env, "/var/lib", "XDG_STATE_HOME", ".local/state")
	}
	if s.runDir == "" {
		s.runDirGuessed = true
		s.runDir = defaultDir(env, "/run", "XDG_RUNTIME_DIR", ".local/run")
	}
	if s.wasmDir == "" {
		s.wasmDir = s.data("wasm")
	}
	for _, dir := range []*string{&s.dataDir, &s.runDir, &s.wasmDir} {
		if abs, err := filepath.Abs(*dir); err == nil {
			*dir = abs
		}
	}
}

func defaultDir(env environment, system, variable, underHome string) string {
	if os.Geteuid() == 0 {
		return filepath.Join(system, "gateway-agent")
	}
	if dir := env[variable]; dir != "" {
		return filepath.Join(dir, "gateway-agent")
	}
	return filepath.Join(env["HOME"], underHome, "gateway-agent")
}

func (s *settings) checkSource() error {
	switch {
	case s.configDir == "" && s.xdsAddress == "":
		return errors.New("no configuration source: give --config-dir DIR, or --xds-address HOST:PORT")
	case s.configDir != "" && s.xdsAddress != "":
		return errors.New("--config-dir and --xds-address exclude each other: give one")
	case s.xdsAddress == "":
		if given := s.upstreamFlags(); len(given) > 0 {
			return fmt.Errorf("%s: only with --xds-address", strings.Join(given, ", "))
		}
		return nil
	}
	return errors.Join(checkAddress("--xds-address", s.xdsAddress), s.checkUpstream())
}

func oneOf(flag, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("%s is %q: give one of %s", flag, value, strings.Join(allowed, ", "))
}

func atLeastZero(flag string, d time.Duration) error {
	if d >= 0 {
		return nil
	}
	return fmt.Errorf("%s is %s: it cannot be negative", flag, d)
}

func checkAddress(flag, address string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fmt.Errorf("%s is %q: want HOST:PORT: %w", flag, address, err)
	}
	return nil
}
