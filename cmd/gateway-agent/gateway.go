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
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/gateway-agent/gateway-agent/dns"
	"github.com/gateway-agent/gateway-agent/ecds"
	"github.com/gateway-agent/gateway-agent/envoy"
	"github.com/gateway-agent/gateway-agent/internal/peercred"
	"github.com/gateway-agent/gateway-agent/internal/upstream"
	"github.com/gateway-agent/gateway-agent/relay"
	"github.com/gateway-agent/gateway-agent/sds"
	"github.com/gateway-agent/gateway-agent/sds/identity"
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

	readyAfter atomic.Int64            // time.Duration from started to the first readiness; 0: not yet
	stop       context.CancelCauseFunc // asks the agent to stop, as SIGTERM does

	store    *wasmcache.Store
	lock     *lock        // nil without --lockfile
	plugins  *ecds.Engine // nil with --wasm=off
	secrets  *sds.Server
	choice   identity.Choice
	identity *identity.Workload // nil with --identity=none
	source   *standalone.Source // nil with --xds-address
	upstream *upstream.Conn
	relay    *relay.Server
	envoy    *envoy.Supervisor // nil with --envoy=none
	status   *status.Server
	dns      *dns.Server // nil without --dns-address

	dataLock  *os.File // locked while this agent has its data directory for itself; nil: it has not
	envoyPath string

	inProcess *bufconn.Listener // serves source to upstream
	xds       net.Listener
	sds       net.Listener // nil when it is the same socket
	control   net.Listener
	public    net.Listener

	dnsSockets []dnsSocket
}

// build makes the parts and connects them. Nothing runs yet.
func (g *gateway) build(ctx context.Context) (err error) {
	s := g.settings
	if err := g.findEnvoy(ctx, s); err != nil {
		return err
	}
	if g.secrets, err = sds.New(sds.Config{Deny: append([]string{s.dataDir, s.runDir}, s.denied...), Log: g.part("sds")}); err != nil {
		return err
	}
	g.ownDataDir()
	if err := g.buildIdentity(); err != nil {
		return err
	}
	if err := g.openSource(ctx); err != nil {
		return err
	}
	if err := g.buildPlugins(); err != nil {
		return err
	}
	if err := g.buildDNS(); err != nil {
		return err
	}
	config := g.relayConfig()
	config.Own = append(g.nameTable(), g.ownTypes()...)
	if g.plugins != nil {
		config.Terminator = g.plugins
	}
	if g.relay, err = relay.New(config); err != nil {
		return err
	}
	return g.buildStatus()
}

func (g *gateway) part(name string) *slog.Logger { return g.log.With("part", name) }

// listen opens every socket before anything starts, so that a taken address is an error at once.
func (g *gateway) listen() (err error) {
	s := g.settings
	if g.control, err = listenUnix(s.path("control.sock"), 0o600); err != nil {
		return err
	}
	if g.xds, err = listenUnix(s.xdsSocket, s.socketMode()); err != nil {
		return err
	}
	if s.sdsSocket != s.xdsSocket {
		if g.sds, err = listenUnix(s.sdsSocket, s.socketMode()); err != nil {
			return err
		}
	}
	if g.public, err = net.Listen("tcp", s.statusAddress); err != nil {
		return fmt.Errorf("--status-address: %w", err)
	}
	return g.listenDNS()
}

const maxUnixPath = 107 // bytes; sockaddr_un.sun_path less its final NUL

// listenUnix opens a socket. One that nobody answers on is left over from a crash and is replaced.
func listenUnix(path string, mode os.FileMode) (net.Listener, error) {
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
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("socket %s: %w: user %d must be able to write to the directory", path, err, os.Geteuid())
	}
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	if err := os.Chmod(path, mode); err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	return listener, nil
}

func (g *gateway) close() {
	for _, c := range []io.Closer{g.control, g.xds, g.sds, g.public} {
		if c != nil {
			_ = c.Close()
		}
	}
	for _, socket := range g.dnsSockets {
		socket.close()
	}
	if g.upstream != nil {
		_ = g.upstream.Close()
	}
	if g.store != nil {
		_ = g.store.Close()
	}
	if g.dataLock != nil {
		_ = g.dataLock.Close()
	}
}

// parts are what runs beside Envoy, by name.
func (g *gateway) parts() iter.Seq2[string, func(context.Context) error] {
	return func(yield func(string, func(context.Context) error) bool) {
		_ = yield("sds", g.secrets.Run) &&
			(g.identity == nil || yield("identity", g.identity.Run)) &&
			(!g.settings.reportHealth || yield("health", g.reportHealth)) &&
			(g.source == nil || (yield("standalone", g.source.Run) && yield("standalone server", g.serveSource))) &&
			(g.plugins == nil || (yield("ecds", g.plugins.Run) && yield("module store", g.runStore))) &&
			yield("xds server", g.serveXDS) &&
			(g.dns == nil || yield("dns server", g.serveDNS)) &&
			yield("status server", func(ctx context.Context) error { return g.status.Serve(ctx, g.public, g.status.Public()) }) &&
			yield("control server", func(ctx context.Context) error { return g.status.Serve(ctx, g.control, g.status.Control()) })
	}
}

func (g *gateway) serveXDS(ctx context.Context) error {
	server := grpc.NewServer(append(g.relay.ServerOptions(), grpc.Creds(peercred.New(g.settings.users()...)), grpc.KeepaliveEnforcementPolicy(envoyPings))...)
	g.relay.Register(server)
	g.secrets.Register(server)
	if g.sds == nil {
		return serveGRPC(ctx, server, g.xds)
	}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return serveGRPC(ctx, server, g.xds) })
	both.Go(func() error { return serveGRPC(ctx, server, g.sds) })
	return both.Wait()
}

func (s *settings) users() []uint32 {
	all := make([]uint32, len(s.socketUsers))
	for i, user := range s.socketUsers {
		all[i] = uint32(user)
	}
	return all
}

// socketMode lets everybody connect when more users are allowed than the file's mode can say: who it is the kernel tells.
func (s *settings) socketMode() os.FileMode {
	if len(s.socketUsers) > 0 {
		return 0o666
	}
	return 0o600
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
