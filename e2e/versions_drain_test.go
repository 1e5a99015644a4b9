package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const beat = 100 * time.Millisecond // between two messages of a client that goes on and on

// patient is an origin whose answers take until they are released.
type patient struct {
	address  string // HTTP/1 and HTTP/2 without TLS
	echo     string // TCP
	released chan struct{}
	grpc     *grpc.Server
}

func startPatient(t *testing.T) *patient {
	t.Helper()
	p := &patient{released: make(chan struct{})}
	p.grpc = grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		for {
			message := &wrapperspb.StringValue{}
			if err := stream.RecvMsg(message); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if err := stream.SendMsg(message); err != nil {
				return err
			}
		}
	}))
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: p, Protocols: &protocols}
	listen := func(serve func(net.Listener)) string {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go serve(listener)
		t.Cleanup(func() { listener.Close() })
		return listener.Addr().String()
	}
	p.address = listen(func(l net.Listener) { _ = server.Serve(l) })
	p.echo = listen(func(l net.Listener) {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); conn.Close() }()
		}
	})
	t.Cleanup(func() { server.Close() })
	return p
}

func (p *patient) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("Upgrade") != "":
		p.upgrade(w)
	case r.Header.Get("Content-Type") == "application/grpc":
		p.grpc.ServeHTTP(w, r)
	case r.URL.Path == "/held":
		select {
		case <-p.released:
		case <-r.Context().Done():
		}
		fmt.Fprint(w, "end")
	case r.URL.Path == "/drip":
		p.drip(w, r)
	default:
		fmt.Fprint(w, "origin")
	}
}

func (p *patient) upgrade(w http.ResponseWriter) {
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", "websocket")
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.Copy(conn, buffered)
}

// drip is a response that comes a little at a time.
func (p *patient) drip(w http.ResponseWriter, r *http.Request) {
	for {
		fmt.Fprint(w, "drop ")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(beat):
		case <-p.released:
			fmt.Fprint(w, "end")
			return
		case <-r.Context().Done():
			return
		}
	}
}

// items are what istiod sends a gateway that has every kind of client: HTTP on podPlain, the same with TLS on podEdge, TCP on podTCP.
func (p *patient) items() []string {
	const options = `
  typed_extension_protocol_options:
    envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
      "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
      use_downstream_protocol_config: { http_protocol_options: {}, http2_protocol_options: {} }
`
	secret := tlsContext(`alpn_protocols: [h2, http/1.1], tls_certificate_sds_secret_configs: [{ name: default, sds_config: {
      api_config_source: { api_type: GRPC, transport_api_version: V3, set_node_on_first_message_only: true,
      grpc_services: [{ envoy_grpc: { cluster_name: sds-grpc } }] }, initial_fetch_timeout: 0s, resource_api_version: V3 } }]`)
	items := []string{
		listener("plain", podPlain), listenerTLS("edge", podEdge, secret),
		fmt.Sprintf(`- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: tcp
  address: { socket_address: { address: 127.0.0.1, port_value: %s } }
  filter_chains:
  - filters:
    - name: tcp
      typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: tcp, cluster: echo }
`, port(podTCP)),
		cluster("origin", p.address) + options, cluster("echo", p.echo),
	}
	for i, item := range items[:3] {
		item = strings.Replace(item, "address: 127.0.0.1", "address: 0.0.0.0", 1)
		item = strings.Replace(item, "timeout: 60s", "timeout: 0s", 1)
		items[i] = strings.Replace(item, "        stat_prefix:", "        upgrade_configs: [{ upgrade_type: websocket }]\n        stat_prefix:", 1)
	}
	return items
}

// wire notes how each connection of a client ended.
type wire struct {
	mu    sync.Mutex
	conns int
	ends  []error
}

type wiredConn struct {
	net.Conn
	wire *wire
	once sync.Once
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns++
	return &wiredConn{Conn: conn, wire: w}, nil
}

func (c *wiredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.once.Do(func() {
			c.wire.mu.Lock()
			defer c.wire.mu.Unlock()
			c.wire.ends = append(c.wire.ends, err)
		})
	}
	return n, err
}

// ended are the number of connections and how those ended that the client did not close.
func (w *wire) ended() (conns int, by []error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, err := range w.ends {
		if !errors.Is(err, net.ErrClosed) {
			by = append(by, err)
		}
	}
	return w.conns, by
}

// caller is an HTTP client of one protocol.
type caller struct {
	wire
	*http.Client
	url string
}

// newCaller makes a client of HTTP/2, with or without TLS, or of HTTP/1.
func newCaller(version int, secure bool) *caller {
	c := &caller{url: "http://" + podPlain}
	if secure {
		c.url = "https://" + podEdge
	}
	var protocols http.Protocols
	protocols.SetHTTP1(version == 1)
	protocols.SetHTTP2(version == 2)
	protocols.SetUnencryptedHTTP2(version == 2 && !secure)
	c.Client = &http.Client{Transport: &http.Transport{
		DialContext: c.dial, Protocols: &protocols, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // TestPodServes looks at the certificate
	}}
	return c
}

// ask makes a request that net/http does not repeat by itself, unless Envoy said that it had not begun with it.
func (c *caller) ask(path, want string) error {
	response, err := c.Post(c.url+path, "text/plain", io.NopCloser(strings.NewReader("x")))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && (response.StatusCode != http.StatusOK || !strings.HasSuffix(string(body), want)) {
		err = fmt.Errorf("%s, %q", response.Status, body)
	}
	return err
}

// steady asks again and again until stop is closed.
func (c *caller) steady(stop <-chan struct{}) error {
	for n := 0; ; n++ {
		if err := c.ask("/", "origin"); err != nil {
			return fmt.Errorf("request %d: %w", n, err)
		}
		select {
		case <-stop:
			return nil
		case <-time.After(beat / 5):
		}
	}
}

// talk echoes over a connection until stop is closed.
func talk(conn net.Conn, from *bufio.Reader, stop <-chan struct{}) error {
	defer conn.Close()
	for n := 0; ; n++ {
		fmt.Fprintf(conn, "message %d\n", n)
		if line, err := from.ReadString('\n'); err != nil || line != fmt.Sprintf("message %d\n", n) {
			return fmt.Errorf("message %d came back as %q: %w", n, line, err)
		}
		select {
		case <-stop:
			return nil
		case <-time.After(beat):
		}
	}
}

func talkTCP(stop <-chan struct{}) error {
	conn, err := net.Dial("tcp", podTCP)
	if err != nil {
		return err
	}
	return talk(conn, bufio.NewReader(conn), stop)
}

func talkWebSocket(stop <-chan struct{}) error {
	conn, err := net.Dial("tcp", podPlain)
	if err != nil {
		return err
	}
	fmt.Fprint(conn, "GET /chat HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	from := bufio.NewReader(conn)
	response, err := http.ReadResponse(from, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		conn.Close()
		return fmt.Errorf("upgrade answered with %+v, %w", response, err)
	}
	return talk(conn, from, stop)
}

func talkGRPC(ctx context.Context, stop <-chan struct{}) error {
	conn, err := grpc.NewClient("passthrough:///"+podPlain, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/talk.Talk/Talk")
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		message, back := wrapperspb.String(fmt.Sprint("message ", n)), &wrapperspb.StringValue{}
		if err := errors.Join(stream.SendMsg(message), stream.RecvMsg(back)); err != nil || back.Value != message.Value {
			return fmt.Errorf("message %d came back as %q: %w", n, back.Value, err)
		}
		select {
		case <-stop:
			if err := errors.Join(stream.CloseSend(), stream.RecvMsg(back)); !errors.Is(err, io.EOF) {
				return fmt.Errorf("the stream's end: %w", err)
			}
			return nil
		case <-time.After(beat):
		}
	}
}
