package safehttp

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
)

// RefusedError says that a request was led where it may not go.
type RefusedError struct {
	What   string
	Remedy string
}

func (e *RefusedError) Error() string {
	if e.Remedy == "" {
		return "refused: " + e.What
	}
	return "refused: " + e.What + " (" + e.Remedy + ")"
}

// Addresses that answer with a machine's own secrets, besides the link-local ones.
var metadata = []netip.Addr{netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("192.0.0.192")}

var (
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8")
	broadcast   = netip.MustParseAddr("255.255.255.255")
)

// What is routed to the IPv4 address that stands in it, at that byte: NAT64, that of a site, and 6to4.
var translated = map[netip.Prefix]int{
	netip.MustParsePrefix("64:ff9b::/96"): 12, netip.MustParsePrefix("64:ff9b:1::/48"): 12, netip.MustParsePrefix("2002::/16"): 2,
}

// control refuses an address after name resolution and before the connection, so that no spelling and no DNS answer gets around it.
func control(loopback bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("dial %s: %w", address, err)
		}
		return checkAddress(ap.Addr(), loopback)
	}
}

func checkAddress(addr netip.Addr, loopback bool) error {
	addr = addr.WithZone("").Unmap()
	for prefix, at := range translated {
		if prefix.Contains(addr) {
			b := addr.As16()
			addr = netip.AddrFrom4([4]byte(b[at:]))
		}
	}
	kind := ""
	switch {
	case addr.IsUnspecified() || thisNetwork.Contains(addr):
		kind = "an unspecified address"
	case addr.IsLinkLocalUnicast():
		kind = "a link-local address (cloud metadata lives there)"
	case addr.IsMulticast() || addr == broadcast:
		kind = "a multicast address"
	case addr.IsLoopback() && !loopback:
		kind = "a loopback address that a remote server led to"
	default:
		if slices.Contains(metadata, addr) {
			kind = "a cloud metadata address"
		}
	}
	if kind == "" {
		return nil
	}
	return &RefusedError{What: fmt.Sprintf("connection to %s, %s", addr, kind), Remedy: "check the URL, its DNS name and where the server redirects"}
}

// checkProxied stands in for the dialer where a proxy resolves names out of our sight: it refuses the well-known names of metadata
// servers, and addresses in spellings that only some resolvers know, such as 0x7f.1 and 2852039166.
func checkProxied(u *url.URL, loopback bool) error {
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if addr, err := netip.ParseAddr(host); err == nil {
		return checkAddress(addr, loopback)
	}
	if IsLoopback(host) && !loopback {
		return &RefusedError{What: "request through a proxy to " + host, Remedy: "check the URL and where the server redirects"}
	}
	last := host[strings.LastIndex(host, ".")+1:]
	odd := last != "" && last[0] >= '0' && last[0] <= '9'
	if odd || slices.Contains(metadataNames, host) {
		return &RefusedError{What: "request through a proxy to " + OneLine(host, 80), Remedy: "check the URL and where the server redirects"}
	}
	return nil
}

var metadataNames = []string{"metadata.google.internal", "metadata.goog", "metadata", "instance-data", "instance-data.ec2.internal"}
