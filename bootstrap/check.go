package bootstrap

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"unicode/utf8"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// maxSocketPath is the longest path that fits into sockaddr_un on Linux with its terminating zero.
const maxSocketPath = 107

// parsed is what check reads out of a Config; nil addresses are absent.
type parsed struct {
	metadata                         *structpb.Struct
	runtime                          *bootstrapv3.LayeredRuntime
	admin, status, ready, prometheus *corev3.Address
	securePrometheus, secureMetrics  *corev3.Address
	statsd                           *corev3.Address
}

func check(c Config) (parsed, error) {
	metadata, errMetadata := metadata(c.NodeMetadata)
	runtime, errRuntime := layers(c.Runtime)
	admin, errAdmin := adminAddress(c)
	statsd, errStatsd := dialAddress("statsd address (--statsd)", c.Telemetry.Statsd)
	status, errStatus := dialAddress("status address", c.StatusAddress)
	ready, errReady := bindAddress("readiness address", c.ReadyAddress)
	prometheus, errPrometheus := bindAddress("Prometheus address", c.PrometheusAddress)
	securePrometheus, errSecure := bindAddress("secure Prometheus address", c.SecurePrometheusAddress)
	secureMetrics, errSecureMetrics := bindAddress("secure metrics address", c.SecureMetricsAddress)
	problems := errors.Join(
		required("node id (--node-id)", c.NodeID),
		required("node cluster (--node-cluster)", c.NodeCluster),
		errMetadata,
		errRuntime,
		checkSocket("xDS socket", c.XDSSocket),
		optionalSocket("SDS socket", c.SDSSocket),
		optionalSocket("other SDS socket", c.OtherSDS),
		errAdmin,
		checkChoices(c),
		c.Telemetry.check(),
		c.Statistics.check(),
		errStatus, errReady, errPrometheus, errSecure, errSecureMetrics, errStatsd,
		checkClashes(c),
	)
	if problems != nil {
		return parsed{}, fmt.Errorf("bootstrap: %w", problems)
	}
	return parsed{
		metadata: metadata, runtime: runtime, admin: admin, status: status, ready: ready, prometheus: prometheus,
		securePrometheus: securePrometheus, secureMetrics: secureMetrics, statsd: statsd,
	}, nil
}

func checkChoices(c Config) error {
	var errs []error
	if c.XDSSocket == c.AdminSocket && c.XDSSocket != "" {
		errs = append(errs, fmt.Errorf("the xDS socket and Envoy's admin socket are the same path %s", c.XDSSocket))
	}
	if c.Mode != ModeSotW && c.Mode != ModeDelta {
		errs = append(errs, fmt.Errorf("xDS mode %q (--xds-mode): use %q or %q", c.Mode, ModeSotW, ModeDelta))
	}
	if c.MaxConnections < 0 {
		errs = append(errs, fmt.Errorf("connection limit %d: use 0 for no limit, or a positive number", c.MaxConnections))
	}
	if c.ReadyAddress != "" && c.StatusAddress == "" {
		errs = append(errs, errors.New("the readiness listener needs the agent's status address (--status-address), which is empty"))
	}
	if c.SecureMetricsAddress != "" && c.StatusAddress == "" {
		errs = append(errs, errors.New("the secure metrics listener needs the agent's status address (--status-address), which is empty"))
	}
	return errors.Join(errs...)
}

// adminAddress is a socket that only Envoy's user can open, or, by choice, an address that everybody on the host can use: the admin
// asks nobody who he is, and can stop Envoy.
func adminAddress(c Config) (*corev3.Address, error) {
	if c.AdminAddress == "" {
		return pipe(c.AdminSocket), checkSocket("Envoy's admin socket", c.AdminSocket)
	}
	if c.AdminSocket != "" {
		return nil, fmt.Errorf("Envoy's admin has a socket %s and an address %s (--admin-address): give one", c.AdminSocket, c.AdminAddress)
	}
	return bindAddress("admin address (--admin-address)", c.AdminAddress)
}

func optionalSocket(what, path string) error {
	if path == "" {
		return nil
	}
	return checkSocket(what, path)
}

func required(what, value string) error {
	switch {
	case value == "":
		return fmt.Errorf("%s is empty, Envoy needs one", what)
	case !utf8.ValidString(value):
		return fmt.Errorf("%s %q is not valid UTF-8", what, value)
	}
	return nil
}

func checkSocket(what, path string) error {
	switch {
	case path == "":
		return fmt.Errorf("%s: no path given", what)
	case !utf8.ValidString(path) || strings.ContainsRune(path, 0):
		return fmt.Errorf("%s: path %q is not a usable file name", what, path)
	case !filepath.IsAbs(path):
		return fmt.Errorf("%s: path %s is relative, Envoy needs an absolute one", what, path)
	case len(path) > maxSocketPath:
		return fmt.Errorf("%s: path %s has %d bytes, a unix socket allows %d: choose a shorter --run-dir", what, path, len(path), maxSocketPath)
	}
	return nil
}

// dialAddress is where Envoy connects to reach what listens on s: an unspecified address becomes loopback.
func dialAddress(what, s string) (*corev3.Address, error) {
	ap, err := parseAddress(what, s)
	if s == "" || err != nil {
		return nil, err
	}
	switch ap.Addr() {
	case netip.IPv4Unspecified():
		return socket(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), ap.Port())), nil
	case netip.IPv6Unspecified():
		return socket(netip.AddrPortFrom(netip.IPv6Loopback(), ap.Port())), nil
	}
	return socket(ap), nil
}

func bindAddress(what, s string) (*corev3.Address, error) {
	ap, err := parseAddress(what, s)
	if s == "" || err != nil {
		return nil, err
	}
	return socket(ap), nil
}

// parseAddress reads IP:port, with "localhost" for 127.0.0.1 and nothing for 0.0.0.0. Other names are refused: Envoy binds and
// dials these addresses before anything could resolve them.
func parseAddress(what, s string) (netip.AddrPort, error) {
	if s == "" {
		return netip.AddrPort{}, nil
	}
	full := s
	if port, ok := strings.CutPrefix(s, "localhost:"); ok {
		full = "127.0.0.1:" + port
	} else if strings.HasPrefix(s, ":") {
		full = "0.0.0.0" + s
	}
	ap, err := netip.ParseAddrPort(full)
	if err != nil || ap.Addr().Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("%s %q: want IP:port, such as 127.0.0.1:15020 or [::1]:15020", what, s)
	}
	if ap.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("%s %q: choose a port from 1 to 65535", what, s)
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}

// checkClashes finds two of the agent's addresses that cannot both be bound. Envoy's reuse_port would hide it: both would bind,
// and each get a part of the connections.
func checkClashes(c Config) error {
	named := []struct{ what, address string }{
		{"status address", c.StatusAddress},
		{"readiness address", c.ReadyAddress},
		{"Prometheus address", c.PrometheusAddress},
		{"secure Prometheus address", c.SecurePrometheusAddress},
		{"secure metrics address", c.SecureMetricsAddress},
		{"admin address", c.AdminAddress},
	}
	var errs []error
	for i, a := range named {
		for _, b := range named[i+1:] {
			if clash(a.address, b.address) {
				errs = append(errs, fmt.Errorf("%s %s and %s %s overlap: give them different ports", a.what, a.address, b.what, b.address))
			}
		}
	}
	return errors.Join(errs...)
}

func clash(a, b string) bool {
	x, errX := parseAddress("", a)
	y, errY := parseAddress("", b)
	if a == "" || b == "" || errX != nil || errY != nil || x.Port() != y.Port() {
		return false
	}
	return x.Addr() == y.Addr() || x.Addr().IsUnspecified() || y.Addr().IsUnspecified()
}

// otherFamily is the wildcard or loopback address of the other IP family, with the same port; nil for other addresses.
func otherFamily(address *corev3.Address) *corev3.Address {
	counterparts := map[string]netip.Addr{
		"0.0.0.0": netip.IPv6Unspecified(), "::": netip.IPv4Unspecified(),
		"127.0.0.1": netip.IPv6Loopback(), "::1": netip.AddrFrom4([4]byte{127, 0, 0, 1}),
	}
	other, ok := counterparts[address.GetSocketAddress().GetAddress()]
	if !ok {
		return nil
	}
	return socket(netip.AddrPortFrom(other, uint16(address.GetSocketAddress().GetPortValue())))
}

func socket(ap netip.AddrPort) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       ap.Addr().String(),
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(ap.Port())},
	}}}
}

func pipe(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}
