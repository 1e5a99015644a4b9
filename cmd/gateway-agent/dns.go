package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/gateway-agent/gateway-agent/dns"
	"github.com/gateway-agent/gateway-agent/relay"
)

// dnsSocket is one address of the DNS server.
type dnsSocket struct {
	udp net.PacketConn
	tcp net.Listener
}

func (s dnsSocket) close() {
	_ = s.udp.Close()
	_ = s.tcp.Close()
}

func (g *gateway) buildDNS() (err error) {
	s := g.settings
	if s.dnsAddress == "" {
		return nil
	}
	_, port, _ := net.SplitHostPort(s.dnsAddress) // checked by completeDNS
	number, _ := net.LookupPort("udp", port)
	g.dns, err = dns.New(dns.Config{
		Domain: s.dnsDomain, ResolvConf: s.dnsResolvConf, Parallel: s.dnsParallel, Timeout: s.dnsTimeout,
		Early: number == 53, // this host's resolver may ask there for the control plane itself
		Log:   g.part("dns"),
	})
	return err
}

// nameTable is what the agent asks the control plane for the DNS server.
func (g *gateway) nameTable() []relay.Own {
	if g.dns == nil {
		return nil
	}
	return []relay.Own{{TypeURL: dns.TypeURL, First: true, Handle: g.dns.Update}} // clusters may need it before Envoy asks for listeners
}

// listenDNS opens the sockets. Of the two loopback addresses one may be missing on this host.
func (g *gateway) listenDNS() error {
	if g.dns == nil {
		return nil
	}
	host, port, err := net.SplitHostPort(g.settings.dnsAddress)
	if err != nil {
		return fmt.Errorf("--dns-address: %w", err)
	}
	hosts := []string{host}
	if host == "localhost" {
		hosts = []string{"127.0.0.1", "::1"}
	}
	var absent error
	for _, host := range hosts {
		socket, err := openDNSSocket(net.JoinHostPort(host, port))
		switch {
		case err == nil:
			g.dnsSockets = append(g.dnsSockets, socket)
			port = strconv.Itoa(socket.tcp.Addr().(*net.TCPAddr).Port) // the other one has the same
		case errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT):
			absent = err
		default:
			return err
		}
	}
	if len(g.dnsSockets) == 0 {
		return absent
	}
	return nil
}

func openDNSSocket(address string) (socket dnsSocket, err error) {
	if socket.tcp, err = net.Listen("tcp", address); err == nil {
		if socket.udp, err = net.ListenPacket("udp", socket.tcp.Addr().String()); err != nil {
			_ = socket.tcp.Close()
		}
	}
	switch {
	case errors.Is(err, os.ErrPermission):
		return socket, fmt.Errorf("--dns-address: %w: user %d may not use this port: choose one above 1023", err, os.Geteuid())
	case err != nil:
		return socket, fmt.Errorf("--dns-address: %w", err)
	}
	return socket, nil
}

func (g *gateway) serveDNS(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	for _, socket := range g.dnsSockets {
		all.Go(func() error { return g.dns.Serve(ctx, socket.udp, socket.tcp) })
	}
	return all.Wait()
}

// missingNames says that the first table is not there: until then the gateway may not know names that its listeners need.
func (g *gateway) missingNames() string {
	if g.dns.Ready() {
		return ""
	}
	return "the control plane has not sent the DNS server's names yet (--dns-address)"
}
