package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// question is an HTTP request to one of a gateway pod's ports; header is one of NAME=VALUE.
type question struct{ method, place, header string }

const (
	fromOutside = podAddress + ":15020"
	fromWithin  = "127.0.0.1:15020"
)

// questions ask what probes, scrapers, hooks and people ask. None of them ends anything.
var questions = []question{
	{"GET", fromOutside + "/healthz/ready", ""},
	{"HEAD", fromOutside + "/healthz/ready", ""},
	{"POST", fromWithin + "/healthz/ready", ""},
	{"GET", fromWithin + "/healthz/ready/", ""},
	{"GET", fromWithin + "//healthz/ready", ""},
	{"GET", fromWithin + "/healthz/live", ""},
	{"POST", fromOutside + "/quitquitquit", ""},
	{"GET", fromOutside + "/quitquitquit", ""},
	{"GET", fromWithin + "/quitquitquit", ""},
	{"HEAD", fromWithin + "/quitquitquit", ""},
	{"PUT", fromWithin + "/quitquitquit", ""},
	{"POST", fromOutside + "/drain", ""},
	{"GET", fromWithin + "/drain", ""},
	{"GET", fromOutside + "/stats/prometheus", ""},
	{"HEAD", fromOutside + "/stats/prometheus", ""},
	{"POST", fromOutside + "/stats/prometheus", ""},
	{"GET", fromOutside + "/metrics", ""},
	{"GET", fromOutside + "/stats/prometheus?usedonly", ""},
	{"GET", fromOutside + "/stats/prometheus?filter=nothing_has_this_name", ""},
	{"GET", fromOutside + "/stats/prometheus?filter=(", ""},
	{"GET", fromOutside + "/metrics", "Accept-Encoding=gzip"},
	{"GET", fromOutside + "/metrics", "Accept=application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"},
	{"GET", fromOutside + "/metrics", "X-Prometheus-Scrape-Timeout-Seconds=5"},
	{"GET", fromOutside + "/metrics", "X-Prometheus-Scrape-Timeout-Seconds=soon"},
	{"GET", fromOutside + "/metrics", "X-Prometheus-Scrape-Timeout-Seconds=0.000001"},
	{"GET", fromOutside + "/debug/ndsz", ""},
	{"GET", fromWithin + "/debug/ndsz", ""},
	{"GET", fromOutside + "/debug/pprof/", ""},
	{"GET", fromWithin + "/debug/pprof/cmdline", ""},
	{"GET", fromWithin + "/", ""},
	{"GET", fromWithin + "/config_dump", ""},
	{"GET", fromWithin + "/app-health/gw/livez", ""},
	{"GET", fromWithin + "/app-lifecycle/gw/prestopz", ""},
	{"GET", podReady + "/healthz/ready", ""},
	{"GET", podReady + "/other", ""},
	{"GET", podPrometheus + "/stats/prometheus", ""},
	{"GET", podPrometheus + "/stats/prometheus", "Accept-Encoding=gzip"},
	{"GET", podPrometheus + "/other", ""},
	{"POST", podPrometheus + "/quitquitquit", ""},
	{"GET", podAdmin + "/ready", ""},
	{"GET", podPlain + "/", ""},
}

// seenOverHTTP asks all of them.
func seenOverHTTP(d *duel, found seen) {
	d.t.Helper()
	plain := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	for _, q := range questions {
		name := strings.TrimSpace("http/" + q.method + " " + q.place + " " + q.header)
		request, err := http.NewRequestWithContext(d.t.Context(), q.method, "http://"+q.place, http.NoBody)
		if err != nil {
			d.t.Fatal(err)
		}
		if header, value, ok := strings.Cut(q.header, "="); ok {
			request.Header.Set(header, value)
		}
		response, err := plain.Do(request)
		if err != nil {
			d.t.Fatalf("%s: %s: %v", d.program, name, err)
		}
		body := readAll(d.t, response)
		found[name] = fmt.Sprintf("%d, %s", response.StatusCode, gist(body))
		for _, header := range []string{"Content-Type", "Content-Encoding", "Location", "Allow"} {
			if value := response.Header.Get(header); value != "" {
				found[name+" -> "+header] = value
			}
		}
		if q.header == "" && strings.HasSuffix(q.place, "/stats/prometheus") && q.method == "GET" {
			for family := range families(body) {
				found["metric/"+port(strings.TrimSuffix(q.place, "/stats/prometheus"))+"/"+family] = "there"
			}
		}
	}
}

// gist is a short answer, or what a long one is.
func gist(body string) string {
	if len(body) > 120 {
		return "much"
	}
	return fmt.Sprintf("%q", strings.ToLower(body))
}

// families are the metrics of an exposition with what labels they have, but for Go's and the process's own.
func families(text string) map[string]bool {
	all := map[string]bool{}
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, _, _ = strings.Cut(name, "{")
		if name != "" && name != "#" && !strings.Contains(name, "agent_go_") && !strings.Contains(name, "agent_process_") {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, suffix)
			}
			all[name] = true
		}
	}
	return all
}

// commands are what istioctl, hooks and people run in the container.
var commands = [][]string{
	{"request", "GET", "server_info"},
	{"request", "get", "/server_info"},
	{"request", "GET", "ready"},
	{"request", "GET", "nothing"},
	{"request", "GET", "config_dump?mask=nothing"},
	{"request", "POST", "logging?misc=error"},
	{"request", "GET", "logging?misc=error"},
	{"request", "GET", "healthz/ready", "--debug-port", "15020"},
	{"request", "GET", "healthz/ready", "--debug-port=15021"},
	{"request", "GET", "server_info", "--debug-port", "9999"},
	{"request", "GET", "server_info", "body", "more"},
	{"request", "GET", "server_info", "--neverHeardOf"},
	{"request", "BAD METHOD", "server_info"},
	{"request", "GET"},
	{"wait"},
	{"wait", "--timeoutSeconds", "1", "--periodMillis", "10", "--requestTimeoutMillis=400"},
	{"wait", "--timeoutSeconds=1", "--periodMillis=10", "--url", "http://localhost:15999/"},
	{"wait", "--timeoutSeconds=1", "--periodMillis=10", "--url=http://localhost:15021/other"},
	{"wait", "--timeoutSeconds=0", "--url=http://localhost:15999/"},
	{"wait", "--timeoutSeconds=soon"},
	{"wait", "extra"},
	{"version"},
	{"version", "-s"},
	{"version", "--short=false"},
	{"version", "-o", "json"},
	{"version", "--output=yaml"},
	{"version", "-o", "xml"},
	{"version", "extra"},
	{"version", "--neverHeardOf"},
	{"proxy", "sidecar", "--dry-run"},
	{"proxy", "nonsense"},
	{"proxy", "router", "--concurrency=many"},
	{"neverHeardOf"},
	{"help"},
	{"proxy", "--help"},
	{"--help"},
	{"--version"},
	{},
}

// seenOfCommands runs all of them.
func seenOfCommands(d *duel, found seen) {
	d.t.Helper()
	for _, args := range commands {
		if d.program[0] == realAgent && slices.Contains(args, "sidecar") {
			continue // it would start one
		}
		name := "command/" + strings.Join(args, " ")
		stdout, err := d.call(args...)
		found[name] = "0"
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			found[name] = fmt.Sprint(exit.ExitCode())
		} else if err != nil {
			d.t.Fatal(err)
		}
		if err == nil {
			found[name+" -> stdout"] = shape(stdout)
		}
	}
}

// shape is a text, or for a long one its kind.
func shape(text string) string {
	switch {
	case len(text) <= 120:
		return fmt.Sprintf("%q", text)
	case strings.HasPrefix(text, "{"):
		return fmt.Sprintf("JSON, ends with a line: %v", strings.HasSuffix(text, "}\n"))
	}
	return "text"
}

// call runs a command with the program of this side.
func (d *duel) call(args ...string) (stdout string, err error) {
	cmd := containerCommand(d.t, d.root, d.environment(), append([]string{d.program[0]}, args...)...)
	out, err := cmd.Output()
	return string(out), err
}

// secretNames are asked for on the SDS socket.
var secretNames = []string{
	"default", "ROOTCA", "file-root:system", "file-root:/var/run/secrets/istio/root-cert.pem",
	"file-root:/var/lib/istio/data/missing.pem", "file-cert:/var/lib/istio/data/cert.pem~/var/lib/istio/data/key.pem", "nonsense", "",
}

// seenSecrets asks for each secret on a stream of its own, as Envoy does.
func seenSecrets(d *duel, found seen) {
	d.t.Helper()
	socket := "unix://" + filepath.Join(d.root, "var/run/secrets/workload-spiffe-uds/socket")
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		d.t.Fatal(err)
	}
	defer conn.Close()
	found["csr/requests"] = fmt.Sprint(len(d.tap.take(caService)))
	for _, name := range secretNames {
		found["sds/"+name] = secretAnswer(d, conn, name)
	}
}

func secretAnswer(d *duel, conn *grpc.ClientConn, name string) string {
	ctx, cancel := context.WithTimeout(d.t.Context(), 400*time.Millisecond)
	defer cancel()
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
	if err != nil {
		return err.Error()
	}
	const typeURL = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	request := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "router~" + podAddress + "~gw-abc.ingress~x"}, TypeUrl: typeURL, ResourceNames: []string{name}}
	if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
		return err.Error()
	}
	response, err := stream.Recv()
	if err != nil {
		code, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "rpc error: code = "), " ")
		return "no answer: " + code
	}
	if len(response.GetResources()) != 1 || response.GetTypeUrl() != typeURL || response.GetNonce() == "" || response.GetVersionInfo() == "" {
		return fmt.Sprintf("%d resources, type %s, nonce and version there: %v", len(response.GetResources()), response.GetTypeUrl(),
			response.GetNonce() != "" && response.GetVersionInfo() != "")
	}
	secret := new(tlsv3.Secret)
	if err := response.GetResources()[0].UnmarshalTo(secret); err != nil {
		return err.Error()
	}
	switch kind := secret.GetType().(type) {
	case *tlsv3.Secret_TlsCertificate:
		chain, key := kind.TlsCertificate.GetCertificateChain().GetInlineBytes(), kind.TlsCertificate.GetPrivateKey().GetInlineBytes()
		return fmt.Sprintf("%q: chain of %d, key %q", secret.GetName(), strings.Count(string(chain), "BEGIN CERTIFICATE"), strings.SplitN(string(key), "\n", 2)[0])
	case *tlsv3.Secret_ValidationContext:
		return fmt.Sprintf("%q: roots, inline: %v", secret.GetName(), len(kind.ValidationContext.GetTrustedCa().GetInlineBytes()) > 0)
	}
	return fmt.Sprintf("%q: %T", secret.GetName(), secret.GetType())
}
