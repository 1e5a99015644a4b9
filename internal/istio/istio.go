// Package istio says what pilot-agent's command line, environment and mounted files mean in this agent's settings. It is a mapping
// without effects: it reads files only through its caller, opens nothing and starts nothing.
package istio

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Version is the Istio release whose contract this package follows; istiod is told it unless ISTIO_META_ISTIO_VERSION says another.
const Version = "1.31.1"

// Paths that the injector and the gateway chart mount, relative to the working directory, which is / in their pods.
const (
	configDir       = "./etc/istio/proxy"
	dataDir         = "./var/lib/istio/data"
	podLabels       = "./etc/istio/pod/labels"
	podAnnotations  = "./etc/istio/pod/annotations"
	workloadSDS     = "./var/run/secrets/workload-spiffe-uds"
	credentialSDS   = "./var/run/secrets/credential-uds/socket"
	legacyFiles     = "./etc/certs"
	istioToken      = "./var/run/secrets/tokens/istio-token"
	kubernetesToken = "./var/run/secrets/kubernetes.io/serviceaccount/token"
	istioRoot       = "./var/run/secrets/istio/root-cert.pem"
	istioCRL        = "./var/run/secrets/istio/crl/ca-crl.pem"

	xdsSocketName    = "XDS"
	bootstrapName    = "envoy-rev.json"
	workloadSockName = "socket"
)

// Interface is a network interface of the pod.
type Interface struct {
	Name      string
	Loopback  bool
	Addresses []netip.Addr
}

// Input is what the mapping looks at.
type Input struct {
	Role string            // first argument of `proxy`; "" is taken for pilot-agent's default, sidecar
	Args Args              // the flags
	Env  map[string]string // the whole environment
	Dir  string            // working directory, absolute; relative paths are under it
	Root bool              // whether the user is root

	ReadFile   func(path string) ([]byte, error) // of an absolute path
	Answers    func(path string) bool            // whether somebody accepts connections on a unix socket
	Interfaces []Interface                       // in the system's order
}

// Map makes settings. The warnings name what is ignored or cannot be read, each thing once; the error says everything that keeps
// the gateway from starting.
func Map(in Input) (Settings, []string, error) {
	m := &mapping{in: in}
	m.checkRole()
	m.mapFiles()
	m.mapProxyConfig()
	m.mapPlaces()
	m.mapNode()
	m.mapDNS()
	m.mapControlPlane()
	m.mapIdentity()
	m.mapEnvoy()
	m.mapLogs()
	m.mapLife()
	m.mapModules()
	m.mapStatistics()
	m.mapTelemetry()
	m.warnIgnored()
	return m.out, m.warnings, errors.Join(m.problems...)
}

// mapping is one call of Map.
type mapping struct {
	in          Input
	out         Settings
	proxy       *proxyConfig
	labels      map[string]string // of the pod
	annotations map[string]string
	warnings    []string
	problems    []error
}

func (m *mapping) warn(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(m.warnings, text) {
		m.warnings = append(m.warnings, text)
	}
}

func (m *mapping) fail(format string, args ...any) {
	m.problems = append(m.problems, fmt.Errorf(format, args...))
}

// abs makes a path absolute; "" stays "".
func (m *mapping) abs(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(m.in.Dir, path)
}

func (m *mapping) exists(path string) bool {
	_, err := m.in.ReadFile(m.abs(path))
	return err == nil
}

func (m *mapping) checkRole() {
	switch m.in.Role {
	case "router":
	case "waypoint":
		m.warn("proxy waypoint: nobody tests this agent as a waypoint; it needs Istio's build of Envoy")
	case "", "sidecar":
		m.fail("proxy %s: this agent runs gateways only: use 'proxy router', or leave the sidecar to pilot-agent", m.in.Role)
	default:
		m.fail("proxy %s: unknown role: use 'proxy router'", m.in.Role)
	}
}

// text is a variable's value, or what it is without one.
func (m *mapping) text(name, without string) string {
	if value := m.in.Env[name]; value != "" {
		return value
	}
	return without
}

// flag reads a boolean. Nonsense counts as not set, as with pilot-agent, but is told.
func (m *mapping) flag(name string) bool { return m.flagOr(name, false) }

func (m *mapping) flagOr(name string, without bool) bool {
	value := m.in.Env[name]
	if value == "" {
		return without
	}
	on, err := strconv.ParseBool(value)
	if err != nil {
		m.warn("%s=%q is not a boolean: ignored", name, value)
		return without
	}
	return on
}

func (m *mapping) duration(name string, without time.Duration) time.Duration {
	value := m.in.Env[name]
	if value == "" {
		return without
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		m.warn("%s=%q is not a duration such as 5s: %v is used", name, value, without)
		return without
	}
	return d
}

func (m *mapping) number(name string, without, least, most int) int {
	value := m.in.Env[name]
	if value == "" {
		return without
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < least || n > most {
		m.warn("%s=%q is not a number from %d to %d: %d is used", name, value, least, most, without)
		return without
	}
	return n
}

func (m *mapping) ratio(name string, without float64) float64 {
	value := m.in.Env[name]
	if value == "" {
		return without
	}
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		m.warn("%s=%q is not a number from 0 to 1: %v is used", name, value, without)
		return without
	}
	return f
}

// list splits a comma-separated value; empty members are left out.
func list(value string) []string {
	var all []string
	for part := range strings.SplitSeq(value, ",") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}
