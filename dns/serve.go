package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
)

const (
	maxConns     = 256                   // TCP connections at the same time; more wait
	writeTimeout = 2 * time.Second       // of an answer over TCP
	acceptPause  = 50 * time.Millisecond // when there are no more files
)

// Serve answers on both until ctx ends, and closes them. It may be called for several addresses.
func (s *Server) Serve(ctx context.Context, udp net.PacketConn, tcp net.Listener) error {
	s.resolv.listens(udp.LocalAddr())
	s.resolv.listens(tcp.Addr())
	conf := s.resolv.now()
	s.log.InfoContext(ctx, "name server started", "address", tcp.Addr().String(), "others", conf.servers, "search", conf.search)
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		defer func() { _ = udp.Close() }()
		return serve(ctx, &dns.Server{PacketConn: udp, Handler: s.handler(ctx, "udp"), UDPSize: maxUDP})
	})
	both.Go(func() error {
		defer tcp.Close()
		limited := &listener{Listener: netutil.LimitListener(tcp, maxConns), pause: func() { pause(ctx) }}
		return serve(ctx, &dns.Server{Listener: limited, Handler: s.handler(ctx, "tcp")})
	})
	if err := both.Wait(); err != nil {
		return fmt.Errorf("name server on %s: %w", tcp.Addr(), err)
	}
	return nil
}

// serve runs one server until ctx ends. One that was not started yet cannot be stopped.
func serve(ctx context.Context, server *dns.Server) error {
	up, ended := make(chan struct{}), make(chan struct{})
	server.NotifyStartedFunc = func() { close(up) }
	var stopper sync.WaitGroup
	stopper.Go(func() {
		select {
		case <-up:
		case <-ended:
			return
		}
		select {
		case <-ctx.Done():
			_ = server.ShutdownContext(context.WithoutCancel(ctx)) // it waits for what serves below to end
		case <-ended:
		}
	})
	err := server.ActivateAndServe()
	close(ended)
	stopper.Wait()
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		err = errors.New("ended early")
	}
	return err
}

func (s *Server) handler(ctx context.Context, network string) dns.Handler {
	return dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		if err := w.WriteMsg(s.respond(ctx, query, network)); err != nil {
			s.log.DebugContext(ctx, "answer not sent", "err", err)
			_ = w.Close() // a client that does not read gets no more of our time
		}
	})
}

// listener gives its connections a deadline for each answer, which the library does not, and keeps it from trying again and again while
// there are no more files.
type listener struct {
	net.Listener
	pause func()
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		l.pause()
	}
	if err != nil {
		return nil, err
	}
	return conn{c}, nil
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(acceptPause):
	}
}

type conn struct{ net.Conn }

// Write implements net.Conn.
func (c conn) Write(data []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(data)
}
