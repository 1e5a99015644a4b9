package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/gateway-agent/gateway-agent/bootstrap"
	"github.com/gateway-agent/gateway-agent/ecds"
	"github.com/gateway-agent/gateway-agent/envoy"
	"github.com/gateway-agent/gateway-agent/internal/peercred"
	"github.com/gateway-agent/gateway-agent/internal/upstream"
	"github.com/gateway-agent/gateway-agent/relay"
	"github.com/gateway-agent/gateway-agent/sds"
	"github.com/gateway-agent/gateway-agent/standalone"
	"github.com/gateway-agent/gateway-agent/status"
	"github.com/gateway-agent/gateway-agent/wasmcache"
)

// gateway is one running agent: the parts of DESIGN's drawing and what connects them.
type gateway struct {
	settings *settings
	log      *slog.Logger
	level    *slog.LevelVar
	started  time.Time
	draining atomic.Bool

	store    *wasmcache.Store
	lock     *lock        // nil without --lockfile
	plugins  *ecds.Engine // nil with --wasm=off
	secrets  *sds.Server
	source   *standalone.Source // nil with --xds-address
	upstream *upstream.Conn
	relay    *relay.Server
	envoy    *envoy.Supervisor // nil with --envoy=none
	status   *status.Server

	envoyPath string

	inProcess *bufconn.Listener // serves source to upstream
	xds       net.Listener
	control   net.Listener
	public    net.Listener
}

// build makes the parts and connects them. Nothing runs yet.
func (g *gateway) build(ctx context.Context) (err error) {
	s := g.settings
	if err := g.findEnvoy(ctx, s); err != nil {
		return err
	}
	if g.secrets, err = sds.New(sds.Config{Deny: []string{s.dataDir, s.runDir}, Log: g.part("sds")}); err != nil {
		return err
	}
	if err := g.openSource(); err != nil {
		return err
	}
	if err := g.buildPlugins(); err != nil {
		return err
	}
	config := g.relayConfig()
	if g.plugins != nil {
		config.Terminator = g.plugins
	}
	if g.relay, err = relay.New(config); err != nil {
		return err
	}
	return g.buildStatus()
}

func (g *gateway) part(name string) *slog.Logger { return g.log.With("part", name) }

func (g *gateway) findEnvoy(ctx context.Context, s *settings) error {
	if s.envoy == "none" {
		return nil
	}
	path, err := envoy.Find(s.envoy)
	if err != nil {
		return fmt.Errorf("--envoy: %w", err)
	}
	found, err := envoy.ReadVersion(ctx, path)
	if err != nil {
		return fmt.Errorf("--envoy: %w", err)
	}
	g.envoyPath = path
	g.envoy, err = envoy.New(envoy.Config{
		Path:         path,
		Version:      found.String(),
		Bootstrap:    s.path("bootstrap.json"),
		Admin:        s.path("admin.sock"),
		Concurrency:  s.concurrency,
		DrainDelay:   s.drainDelay,
		DrainMin:     s.drainMin,
		DrainTimeout: s.drainTimeout,
		Stdout:       os.Stdout,
		LogLevel:     envoyLevel(s.logLevel),
		OnDrain:      func() { g.draining.Store(true) },
		Log:          g.part("envoy"),
	})
	return err
}

func (g *gateway) bootstrapConfig() bootstrap.Config {
	s := g.settings
	metadata := map[string]any{}
	for _, pair := range s.nodeMeta {
		key, value, _ := strings.Cut(pair, "=")
		metadata[key] = value
	}
	return bootstrap.Config{
		NodeID:            s.nodeID,
		NodeCluster:       s.nodeCluster,
		NodeMetadata:      metadata,
		XDSSocket:         s.path("xds.sock"),
		AdminSocket:       s.path("admin.sock"),
		Mode:              s.xdsMode,
		ReadyAddress:      s.readyAddress,
		PrometheusAddress: s.prometheusAddress,
		StatusAddress:     s.statusAddress,
	}
}

// listen opens every socket before anything starts, so that a taken address is an error at once.
func (g *gateway) listen() (err error) {
	s := g.settings
	if g.control, err = listenUnix(s.path("control.sock")); err != nil {
		return err
	}
	if g.xds, err = listenUnix(s.path("xds.sock")); err != nil {
		return err
	}
	if g.public, err = net.Listen("tcp", s.statusAddress); err != nil {
		return fmt.Errorf("--status-address: %w", err)
	}
	return nil
}

const maxUnixPath = 107 // bytes; sockaddr_un.sun_path less its final NUL

// listenUnix opens a socket that only this user can use. A socket that nobody answers on is left over from a crash and is replaced.
func listenUnix(path string) (net.Listener, error) {
	if len(path) > maxUnixPath {
		return nil, fmt.Errorf("socket %s: the path is %d bytes, a unix socket can have %d: choose a shorter --run-dir", path, len(path), maxUnixPath)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("socket %s: another gateway-agent runs there: stop it, or give this one its own --run-dir", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	return listener, nil
}

func (g *gateway) close() {
	for _, c := range []io.Closer{g.control, g.xds, g.public} {
		if c != nil {
			_ = c.Close()
		}
	}
	if g.upstream != nil {
		_ = g.upstream.Close()
	}
	if g.store != nil {
		_ = g.store.Close()
	}
}

// parts are what runs beside Envoy, by name.
func (g *gateway) parts() iter.Seq2[string, func(context.Context) error] {
	return func(yield func(string, func(context.Context) error) bool) {
		_ = yield("sds", g.secrets.Run) &&
			(g.source == nil || (yield("standalone", g.source.Run) && yield("standalone server", g.serveSource))) &&
			(g.plugins == nil || (yield("ecds", g.plugins.Run) && yield("module store", g.runStore))) &&
			yield("xds server", g.serveXDS) &&
			yield("status server", func(ctx context.Context) error { return g.status.Serve(ctx, g.public, g.status.Public()) }) &&
			yield("control server", func(ctx context.Context) error { return g.status.Serve(ctx, g.control, g.status.Control()) })
	}
}

func (g *gateway) serveXDS(ctx context.Context) error {
	server := grpc.NewServer(append(g.relay.ServerOptions(), grpc.Creds(peercred.New()), grpc.KeepaliveEnforcementPolicy(envoyPings))...)
	g.relay.Register(server)
	g.secrets.Register(server)
	return serveGRPC(ctx, server, g.xds)
}

func (g *gateway) serveSource(ctx context.Context) error {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(256 << 20))
	g.source.Register(server)
	return serveGRPC(ctx, server, g.inProcess)
}

// serveGRPC serves until ctx ends, then ends every stream.
func serveGRPC(ctx context.Context, server *grpc.Server, listener net.Listener) error {
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return err
	}
	server.Stop()
	return nil
}

func (s *settings) data(elem ...string) string {
	return filepath.Join(append([]string{s.dataDir}, elem...)...)
}

func (g *gateway) sourceText() string {
	if g.source != nil {
		return g.settings.configDir
	}
	return g.settings.xdsAddress
}
