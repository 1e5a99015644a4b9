package main

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
)

func dnsGateway(t *testing.T, address string) *gateway {
	t.Helper()
	g := &gateway{settings: &settings{dnsSettings: dnsSettings{dnsAddress: address, dnsResolvConf: "/nowhere", dnsTimeout: 1}}, log: slog.New(slog.DiscardHandler)}
	if err := g.buildDNS(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	return g
}

// localhost is both addresses, with one port, over UDP and TCP.
func TestDNSOnLocalhost(t *testing.T) {
	g := dnsGateway(t, "localhost:0")
	if err := g.listenDNS(); err != nil {
		t.Fatal(err)
	}
	want := []string{"127.0.0.1"}
	if probe, err := net.Listen("tcp", "[::1]:0"); err == nil {
		probe.Close()
		want = append(want, "::1")
	}
	if len(g.dnsSockets) != len(want) {
		t.Fatalf("%d sockets, want one for each of %q", len(g.dnsSockets), want)
	}
	port := g.dnsSockets[0].tcp.Addr().(*net.TCPAddr).Port
	for i, socket := range g.dnsSockets {
		tcp, udp := socket.tcp.Addr().(*net.TCPAddr), socket.udp.LocalAddr().(*net.UDPAddr)
		if tcp.IP.String() != want[i] || udp.IP.String() != want[i] || tcp.Port != port || udp.Port != port {
			t.Errorf("socket %d is %v and %v, want %s with port %d", i, tcp, udp, want[i], port)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.serveDNS(ctx); err != nil {
		t.Errorf("serveDNS = %v after its end, want nil", err)
	}
}

func TestDNSAddressInUse(t *testing.T) {
	for _, network := range []string{"tcp", "udp"} {
		var address string
		if network == "tcp" {
			taken, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer taken.Close()
			address = taken.Addr().String()
		} else {
			taken, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer taken.Close()
			address = taken.LocalAddr().String()
		}
		g := dnsGateway(t, address)
		if err := g.listenDNS(); err == nil || !strings.HasPrefix(err.Error(), "--dns-address: ") || !strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) {
			t.Errorf("%s in use: %v, want an error that says so", network, err)
		}
	}
	if err := dnsGateway(t, "192.0.2.1:15053").listenDNS(); err == nil || !strings.Contains(err.Error(), "192.0.2.1:15053") {
		t.Errorf("an address of nobody here: %v, want an error with it", err)
	}
	g := dnsGateway(t, "")
	if err := g.listenDNS(); err != nil || g.dns != nil || g.nameTable() != nil {
		t.Errorf("without an address: %v, %v", err, g.dns)
	}
}
