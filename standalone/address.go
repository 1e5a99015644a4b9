package standalone

import (
	"net"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
)

// addressText is an address as people write it, "" when it has none.
func addressText(a *corev3.Address) string {
	switch {
	case a.GetSocketAddress() != nil:
		s := a.GetSocketAddress()
		port := strconv.FormatUint(uint64(s.GetPortValue()), 10)
		if s.GetNamedPort() != "" {
			port = s.GetNamedPort()
		}
		return net.JoinHostPort(s.GetAddress(), port)
	case a.GetPipe() != nil:
		return a.GetPipe().GetPath()
	case a.GetEnvoyInternalAddress() != nil:
		return "internal:" + a.GetEnvoyInternalAddress().GetServerListenerName()
	}
	return ""
}

// bindKey tells whether two addresses would be one socket; "" for an address that can be had twice.
func bindKey(a *corev3.Address) string {
	s := a.GetSocketAddress()
	switch {
	case s != nil && (s.GetPortValue() == 0 && s.GetNamedPort() == ""):
		return ""
	case s != nil && s.GetNetworkNamespaceFilepath() != "":
		return s.GetProtocol().String() + " " + s.GetNetworkNamespaceFilepath() + " " + addressText(a)
	case s != nil:
		return s.GetProtocol().String() + " " + canonicalHost(s.GetAddress()) + " " + addressText(a)
	}
	return addressText(a)
}

func canonicalHost(h string) string {
	if ip := net.ParseIP(h); ip != nil {
		return ip.String()
	}
	return h
}

func addressesOf(l *listenerv3.Listener) []*corev3.Address {
	all := []*corev3.Address{l.GetAddress()}
	for _, extra := range l.GetAdditionalAddresses() {
		all = append(all, extra.GetAddress())
	}
	return all
}

// checkAddresses refuses two listeners on one address, of which Envoy would keep the first and reject the second.
func (c *config) checkAddresses() {
	taken := map[string]*resource{}
	for _, r := range c.of(listeners) {
		for _, a := range addressesOf(r.msg.(*listenerv3.Listener)) {
			key := bindKey(a)
			if key == "" {
				continue
			}
			if first := taken[key]; first != nil {
				c.add(c.lineOf(a, r), r.String(), "address %s is already taken by %s (%s:%d)", addressText(a), first, first.node.File, first.node.Line)
				continue
			}
			taken[key] = r
		}
	}
}
