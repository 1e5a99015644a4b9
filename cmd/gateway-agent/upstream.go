package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/gateway-agent/gateway-agent/internal/upstream"
	"github.com/gateway-agent/gateway-agent/relay"
	"github.com/gateway-agent/gateway-agent/standalone"
)

// envoyPings allows what the bootstrap tells Envoy to send; gRPC's default would answer with GOAWAY.
var envoyPings = keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}

// upstreamFlags are the flags that were given and mean something for a control plane only.
func (s *settings) upstreamFlags() (given []string) {
	for _, flag := range []struct {
		name string
		set  bool
	}{
		{"--xds-ca", s.xdsCA != ""},
		{"--xds-server-name", s.xdsServerName != ""},
		{"--xds-cert", s.xdsCert != ""},
		{"--xds-key", s.xdsKey != ""},
		{"--xds-plaintext", s.xdsPlaintext},
		{"--xds-token-file", s.xdsTokenFile != ""},
		{"--xds-header", len(s.xdsHeader) > 0},
		{"--xds-max-stream-age", s.xdsMaxAge != 0},
	} {
		if flag.set {
			given = append(given, flag.name)
		}
	}
	return given
}

// forTLS are the flags among them that make no sense in plain text.
var forTLS = []string{"--xds-ca", "--xds-server-name", "--xds-cert", "--xds-key"}

// checkUpstream checks what is said of the control plane. That the files are there and good is checked at each connect.
func (s *settings) checkUpstream() error {
	var problems []error
	for _, flag := range s.upstreamFlags() {
		if s.xdsPlaintext && slices.Contains(forTLS, flag) {
			problems = append(problems, fmt.Errorf("--xds-plaintext excludes %s: give one of them", flag))
		}
	}
	if s.xdsPlaintext && s.xdsTokenFile != "" && !s.xdsTokenPlaintext && !s.xdsTokenOptional {
		problems = append(problems, errors.New("--xds-plaintext excludes --xds-token-file: the token is never sent without TLS"))
	}
	if (s.xdsCert == "") != (s.xdsKey == "") {
		problems = append(problems, errors.New("--xds-cert and --xds-key belong together: give both"))
	}
	if _, err := s.upstreamHeader(); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// upstreamHeader never shows a value: it may be a secret.
func (s *settings) upstreamHeader() (map[string]string, error) {
	header := make(map[string]string, len(s.xdsHeader))
	for i, pair := range s.xdsHeader {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--xds-header: number %d is not NAME=VALUE", i+1)
		}
		header[name] = value
	}
	if err := upstream.CheckHeader(header); err != nil {
		return nil, fmt.Errorf("--xds-header: %w", err)
	}
	return header, nil
}

// upstreamConfig is how the control plane is dialled.
func (s *settings) upstreamConfig() (upstream.Config, error) {
	header, err := s.upstreamHeader()
	if err != nil {
		return upstream.Config{}, err
	}
	host, _, err := net.SplitHostPort(s.xdsAddress)
	if err != nil {
		return upstream.Config{}, fmt.Errorf("--xds-address: %w", err)
	}
	asked := cmp.Or(s.xdsCA, s.xdsServerName, s.xdsCert, s.xdsTokenFile) != ""
	config := upstream.Config{
		Address: s.xdsAddress, Plaintext: s.xdsPlaintext || !asked && isLoopback(host),
		ServerName: s.xdsServerName, Header: header, PlaintextToken: s.xdsTokenPlaintext,
	}
	if s.xdsCA != "" {
		config.Roots = upstream.RootsFile(s.xdsCA)
	}
	if s.xdsCert != "" {
		config.Certificate = upstream.CertificateFiles(s.xdsCert, s.xdsKey)
	}
	if s.xdsTokenFile != "" {
		config.Token = upstream.TokenFile(s.xdsTokenFile, s.xdsTokenOptional)
	}
	return config, nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// openSource makes the control plane, whichever it is, look the same to the relay: a gRPC connection that serves ADS.
func (g *gateway) openSource(ctx context.Context) error {
	config := upstream.Config{Address: "config-dir:0", Plaintext: true, KeepaliveTime: -1} // in this process, when it is a directory
	var err error
	if g.settings.configDir == "" {
		config, err = g.settings.upstreamConfig()
	} else {
		config.Dial, err = g.openDir(ctx)
	}
	if err != nil {
		return err
	}
	if g.provisioned() {
		config.Certificate = orOwn(config.Certificate, g.identity.TLS)
	}
	g.upstream, err = upstream.Open(config)
	return err
}

// openDir serves the configuration directory in memory.
func (g *gateway) openDir(ctx context.Context) (dial func(context.Context, string) (net.Conn, error), err error) {
	g.source, err = standalone.New(standalone.Config{Dir: g.settings.configDir, Secrets: g.secrets.SetNamed, Log: g.part("standalone")})
	if err != nil {
		return nil, err
	}
	if err := g.source.Load(ctx); err != nil {
		return nil, err
	}
	g.inProcess = bufconn.Listen(64 << 10)
	return func(ctx context.Context, _ string) (net.Conn, error) { return g.inProcess.DialContext(ctx) }, nil
}

// relayConfig is the relay's, but for what the plugins add.
func (g *gateway) relayConfig() relay.Config {
	config := relay.Config{Upstream: g.upstream, Answers: g.settings.xdsAnswers, Log: g.part("relay")}
	if g.source == nil {
		config.Redial, config.MaxAge = g.upstream.Redial, g.settings.xdsMaxAge
	} else {
		config.StuckAfter = -1 // it is in this process
	}
	return config
}
