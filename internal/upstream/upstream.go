// Package upstream dials the control plane and the certificate authority, in one way: what proves who is who (roots, client certificate,
// token) is asked for again at each handshake and each call, so that a rotation needs no restart, and a connection that is made again
// goes to another of the host's addresses when there is one.
package upstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

const (
	defaultConnectTimeout   = 10 * time.Second
	defaultBackoffBase      = 100 * time.Millisecond
	defaultBackoffMax       = 15 * time.Second
	defaultKeepaliveTime    = 30 * time.Second // istiod allows a ping every 15 s
	defaultKeepaliveTimeout = 10 * time.Second
)

// Config is what a connection needs. The functions may be called at any time, from any goroutine, until the connection is closed; what
// their errors say is what a person reads in the status.
type Config struct {
	Address   string // host:port; required. The host's addresses are looked up at each connect
	Plaintext bool   // no TLS

	Roots       func() ([]byte, error)           // PEM bundle, asked at each handshake; nil: the system's
	ServerName  string                           // name expected in the server's certificate; default: the host of Address
	Certificate func() (*tls.Certificate, error) // client certificate, asked at each handshake; nil or returning nil: none

	Token          func() (string, error) // bearer token, asked at each stream or call; nil or returning "": none. Plaintext: not sent
	PlaintextToken bool                   // sends the token without TLS too
	Header         map[string]string      // metadata of each stream or call, by name

	Dial func(ctx context.Context, address string) (net.Conn, error) // opens the connection to Address; nil: TCP

	ConnectTimeout   time.Duration // of one try to connect, handshake included; default 10 s
	BackoffBase      time.Duration // wait after the first failure to connect; default 100 ms
	BackoffMax       time.Duration // longest wait on average, the longest one is twice that; default 15 s
	KeepaliveTime    time.Duration // silence after which a ping is sent, while there are streams; default 30 s, negative: no pings
	KeepaliveTimeout time.Duration // wait for its answer; default 10 s
	Window           int32         // bytes of HTTP/2 flow control for a stream and for the connection; default: measured
}

// Conn is a connection that is made when it is needed, and made again when it is lost. Its methods may be called from any goroutine.
type Conn struct {
	*grpc.ClientConn
	dialer *dialer
}

// Dial is Open for who needs no Redial.
func Dial(config Config) (*grpc.ClientConn, error) {
	conn, err := Open(config)
	if err != nil {
		return nil, err
	}
	return conn.ClientConn, nil
}

// Open checks the configuration. Nothing is dialled before the first call.
func Open(config Config) (*Conn, error) {
	host, port, err := net.SplitHostPort(config.Address)
	if err != nil {
		return nil, fmt.Errorf("address %q: want HOST:PORT: %w", config.Address, err)
	}
	if err := CheckHeader(config.Header); err != nil {
		return nil, fmt.Errorf("address %q: %w", config.Address, err)
	}
	config.setDefaults(host)
	d := newDialer(host, port, config.Dial)
	conn, err := grpc.NewClient("passthrough:///"+config.Address, config.options(d)...)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", config.Address, err)
	}
	return &Conn{ClientConn: conn, dialer: d}, nil
}

// Redial cuts the connection, and with it everything on it. The next one goes to another address when there is one. It does not wait.
func (c *Conn) Redial() { c.dialer.cut() }

func (c *Config) setDefaults(host string) {
	c.ServerName = cmp.Or(c.ServerName, host)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, defaultConnectTimeout)
	c.BackoffBase = cmp.Or(c.BackoffBase, defaultBackoffBase)
	c.BackoffMax = cmp.Or(c.BackoffMax, defaultBackoffMax)
	c.KeepaliveTime = cmp.Or(c.KeepaliveTime, defaultKeepaliveTime)
	c.KeepaliveTimeout = cmp.Or(c.KeepaliveTimeout, defaultKeepaliveTimeout)
}

func (c *Config) options(d *dialer) []grpc.DialOption {
	creds := insecure.NewCredentials()
	if !c.Plaintext {
		creds = &transport{config: c}
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(d.dial),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: c.backoff(), MinConnectTimeout: c.ConnectTimeout}),
		grpc.WithDisableServiceConfig(),
	}
	if c.KeepaliveTime > 0 { // a server that finds it too often says so, and gRPC doubles it
		options = append(options, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: c.KeepaliveTime, Timeout: c.KeepaliveTimeout}))
	}
	if c.ServerName != "" && !c.Plaintext {
		options = append(options, grpc.WithAuthority(c.ServerName))
	}
	if len(c.Header) > 0 {
		options = append(options, grpc.WithPerRPCCredentials(header(c.Header)))
	}
	if c.Token != nil && (!c.Plaintext || c.PlaintextToken) {
		options = append(options, grpc.WithPerRPCCredentials(token{read: c.Token, plaintext: c.PlaintextToken}))
	}
	if c.Window > 0 {
		options = append(options, grpc.WithInitialWindowSize(c.Window), grpc.WithInitialConnWindowSize(c.Window))
	}
	return options
}

// backoff spaces the tries to connect. A wait is a small share of the time that the server has been away (the multiplier less one, doubled
// by the jitter): one that was away for 10 s is found within 1.5 s, and the many that wait for one that was away for long do not all come
// at once.
func (c *Config) backoff() backoff.Config {
	return backoff.Config{BaseDelay: c.BackoffBase, Multiplier: 1.06, Jitter: 1, MaxDelay: c.BackoffMax}
}

// transport is TLS whose settings are read anew at each handshake.
type transport struct{ config *Config }

func (t *transport) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.config.ServerName}
	if t.config.Roots != nil {
		bundle, err := t.config.Roots()
		if err != nil {
			return nil, fmt.Errorf("read the roots: %w", err)
		}
		if config.RootCAs, err = pool(bundle); err != nil {
			return nil, fmt.Errorf("read the roots: %w", err)
		}
	}
	if t.config.Certificate != nil {
		certificate, err := t.config.Certificate()
		if err != nil {
			return nil, fmt.Errorf("read the client certificate: %w", err)
		}
		if certificate != nil {
			config.Certificates = []tls.Certificate{*certificate}
		}
	}
	return config, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *transport) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := t.tls()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
}

// ServerHandshake implements credentials.TransportCredentials.
func (t *transport) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("upstream: these are a client's credentials")
}

// Info implements credentials.TransportCredentials.
func (t *transport) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (t *transport) Clone() credentials.TransportCredentials { return &transport{config: t.config} }

// OverrideServerName implements credentials.TransportCredentials.
func (t *transport) OverrideServerName(string) error {
	return errors.New("upstream: the server name is in the configuration")
}

// header is metadata for each call.
type header map[string]string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (h header) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return h, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (h header) RequireTransportSecurity() bool { return false }

// CheckHeader tells whether h can be sent as metadata. It never shows a value: it may be a secret.
func CheckHeader(h map[string]string) error {
	for name, value := range h {
		lower := strings.ToLower(name)
		if name == "" || strings.HasPrefix(lower, "grpc-") || slices.Contains(reserved, lower) || !isName(lower) {
			return fmt.Errorf("header %q: this cannot be the name of gRPC metadata: use letters, digits, '-', '_' and '.', and none of gRPC's own names", name)
		}
		if !strings.HasSuffix(lower, "-bin") && !printable(value) {
			return fmt.Errorf("header %q: its value has characters that cannot be sent: use printable ASCII", name)
		}
	}
	if len(metadata.New(h)) != len(h) {
		return errors.New("a header is given twice: upper and lower case are the same")
	}
	return nil
}

// reserved are the names that gRPC and HTTP/2 use themselves.
var reserved = []string{"connection", "content-type", "host", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade", "user-agent"}

func isName(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_.", r) }) < 0
}

func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

// token is a bearer token that is read for each call.
type token struct {
	read      func() (string, error)
	plaintext bool
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	text, err := t.read()
	if err != nil {
		return nil, fmt.Errorf("read the token: %w", err)
	}
	if text == "" {
		return nil, nil
	}
	if !printable(text) {
		return nil, errors.New("read the token: it has characters that cannot be sent: want printable ASCII")
	}
	return map[string]string{"authorization": "Bearer " + text}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (t token) RequireTransportSecurity() bool { return !t.plaintext }
