package relay

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gateway-agent/gateway-agent/internal/peercred"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

func TestReady(t *testing.T) {
	both(t, "", false, func(r *rig) {
		want := func(reason string) {
			r.t.Helper()
			r.wait()
			if ready, got := r.server.Ready(0); ready != (reason == "") || !strings.HasPrefix(got, reason) {
				r.t.Errorf("Ready = %v, %q, want %q", ready, got, reason)
			}
		}
		send := func(up *xdstest.Stream, typeURL, version string) xdstest.Response {
			r.t.Helper()
			up.Send(xdstest.Response{Type: typeURL, Version: version, Resources: xdstest.R(version, "x=a")})
			return r.envoy.Recv()
		}
		want("waiting for Envoy to open an ADS stream")
		up := r.open()
		want("waiting for Envoy to ask for CDS")
		r.envoy.Want(xdstest.CDS)
		up.Recv()
		want("waiting for the first CDS answer from the control plane")
		clusters := send(up, xdstest.CDS, "1")
		want("waiting for Envoy to accept CDS")
		r.envoy.ACK(clusters)
		up.Recv()
		want("waiting for Envoy to ask for LDS")
		r.envoy.Want(xdstest.LDS)
		up.Recv()
		want("waiting for the first LDS answer from the control plane")
		r.envoy.NACK(send(up, xdstest.LDS, "1"), "Error adding/updating listener(s) l1: port taken")
		up.Recv()
		want("Envoy rejected LDS: Error adding/updating listener(s) l1: port taken")
		r.envoy.ACK(send(up, xdstest.LDS, "2"))
		up.Recv()
		want("")
		r.envoy.NACK(send(up, xdstest.LDS, "3"), "no")
		up.Recv()
		want("") // sticky
		up.End(codes.Unavailable, "bye")
		_ = r.envoy.End()
		want("")
		up = r.open()
		r.envoy.Again(xdstest.CDS) // the same process: it has versions
		up.Recv()
		want("")
		r.envoy.Close()
		up.Gone()
		time.Sleep(absence + time.Second)
		want("Envoy has had no ADS stream since")
		if ready, reason := r.server.Ready(4711); ready || reason == "" {
			r.t.Errorf("Ready of an unknown process = %v, %q", ready, reason)
		}
	})
}

// Envoy says why it rejects a secret, not which: the one who is to mend it needs the name.
func TestRejectedSecretIsNamed(t *testing.T) {
	both(t, "", false, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.SDS, "kubernetes://a/one", "kubernetes://a/two")
		up.Recv()
		for version, tt := range map[string]struct {
			names []string
			want  string
		}{
			"1": {[]string{"kubernetes://a/one=x"}, "kubernetes://a/one: "},
			"2": {[]string{"kubernetes://a/one=x", "kubernetes://a/two=x"}, "kubernetes://a/one, kubernetes://a/two: "},
			"3": {[]string{"1=x", "2=x", "3=x", "4=x", "5=x", "6=x", "7=x"}, "1, 2, 3, 4, 5, 2 more: "},
			"4": {nil, ""},
		} {
			up.Send(xdstest.Response{Type: xdstest.SDS, Version: version, Resources: xdstest.R(version, tt.names...)})
			r.envoy.NACK(r.envoy.Recv(), "Failed to load private key from <inline>")
			up.Recv()
			r.wait()
			if got, want := r.server.Status().Sessions[0].Types[0].Error, tt.want+"Failed to load private key from <inline>"; got != want {
				r.t.Errorf("the error is %q, want %q", got, want)
			}
		}
	})
}

// A process that our PID namespace hides is told from the one before by having accepted nothing.
func TestNewHiddenProcessIsNotReady(t *testing.T) {
	both(t, "", false, func(r *rig) {
		for range 2 {
			up := r.open()
			r.envoy.Want(xdstest.CDS)
			up.Recv()
			r.wait()
			if ready, _ := r.server.Ready(0); ready {
				r.t.Error("a new process is ready before it has accepted anything")
			}
			for _, typeURL := range []string{xdstest.CDS, xdstest.LDS} {
				up.Send(xdstest.Response{Type: typeURL, Version: "1", Resources: xdstest.R("1", "x=a")})
				r.envoy.ACK(r.envoy.Recv())
				up.Recv()
			}
			r.wait()
			if ready, reason := r.server.Ready(0); !ready {
				r.t.Errorf("not ready after both were accepted: %s", reason)
			}
			r.envoy.Close()
			up.Gone()
			r.envoy = r.envoy.Restarted()
		}
	})
}

func TestStatusAndMetrics(t *testing.T) {
	both(t, "", true, func(r *rig) {
		registry := prometheus.NewPedanticRegistry()
		if err := registry.Register(r.server); err != nil {
			r.t.Fatal(err)
		}
		up := r.open()
		r.envoy.Want(xdstest.LDS, "a", "b")
		up.Recv()
		up.Send(xdstest.Response{Type: xdstest.LDS, Version: "1", Resources: xdstest.R("1", "a=x")})
		r.envoy.ACK(r.envoy.Recv())
		up.Recv()
		up.Send(xdstest.Response{Type: xdstest.LDS, Version: "2", Resources: xdstest.R("2", "a=y")})
		r.envoy.NACK(r.envoy.Recv(), "l1: goo.gle/debugonly \nkey: \"hunter2\"\n: no")
		up.Recv()
		up.Send(xdstest.Response{Type: "type.googleapis.com/some.thing", Version: "1"})
		r.envoy.Recv()
		up.Send(xdstest.Response{Type: xdstest.LDS, Version: "3", Resources: xdstest.R("3", "a=z")})
		time.Sleep(2500 * time.Millisecond) // no answer
		st := r.server.Status()
		if !st.Connected || len(st.Sessions) != 1 {
			r.t.Fatalf("Status = %+v, want one connected session", st)
		}
		one := st.Sessions[0]
		if one.Node != "gw" || one.Upstream != "connected" || one.Protocol != r.server.sotw.name && one.Protocol != r.server.delta.name {
			r.t.Errorf("session %+v", one)
		}
		now := one.Types[0].LastACK
		want := TypeStatus{
			Type: "LDS", TypeURL: xdstest.LDS, Asked: true, Names: 2, Received: "3", Accepted: "1", Responses: 3, ACKs: 1, NACKs: 1,
			LastResponse: now, LastACK: now, LastNACK: now, Unanswered: now, Error: "l1: no",
		}
		if diff := cmp.Diff(want, one.Types[0]); diff != "" {
			r.t.Errorf("status of LDS (-want +got):\n%s", diff)
		}
		if _, err := json.Marshal(st); err != nil {
			r.t.Errorf("the status is not JSON: %v", err)
		}
		if log := r.log.String(); !strings.Contains(log, `err="l1: no"`) || strings.Contains(log, "hunter2") {
			r.t.Errorf("the log must have Envoy's text without what it quotes:\n%s", log)
		}
		metrics := []string{
			`gateway_agent_xds_connected 1`,
			`gateway_agent_xds_last_response_age_seconds 2.5`,
			`gateway_agent_xds_rejects_total{type="LDS"} 1`,
			`gateway_agent_xds_responses_total{type="ECDS"} 0`,
			`gateway_agent_xds_responses_total{type="LDS"} 3`,
			`gateway_agent_xds_responses_total{type="other"} 1`,
			`gateway_agent_xds_sessions 1`,
			`gateway_agent_xds_stuck_streams_total 0`,
			`gateway_agent_xds_unacked_age_seconds{type="LDS"} 2.5`,
		}
		if diff := cmp.Diff(metrics, samplesOf(r.t, registry)); diff != "" {
			r.t.Errorf("metrics (-want +got):\n%s", diff)
		}
	})
}

// Over a real unix socket the session knows the process behind it, and readiness is that process's.
func TestProcessIsKnown(t *testing.T) {
	r := newRigWith(t, nil, false, false)
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append(r.server.ServerOptions(), grpc.Creds(peercred.New()))...)
	r.server.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-served })
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r.envoy = xdstest.NewEnvoy(t, nil, conn, false)
	up := r.open()
	for _, typeURL := range []string{xdstest.CDS, xdstest.LDS} {
		r.envoy.Want(typeURL)
		up.Recv()
		up.Send(xdstest.Response{Type: typeURL, Version: "1", Resources: xdstest.R("1", "x=a")})
		r.envoy.ACK(r.envoy.Recv())
		up.Recv()
	}
	if st := r.server.Status().Sessions; len(st) != 1 || st[0].PID != os.Getpid() || st[0].UID != uint32(os.Geteuid()) {
		t.Errorf("sessions %+v, want ours, process %d", st, os.Getpid())
	}
	if ready, reason := r.server.Ready(os.Getpid()); !ready {
		t.Errorf("Ready(%d) = false, %s", os.Getpid(), reason)
	}
	if ready, _ := r.server.Ready(1 << 30); ready {
		t.Error("another process is ready too")
	}
}

// samplesOf are the lines of the exposition without comments.
func samplesOf(t *testing.T, registry *prometheus.Registry) (lines []string) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&b, family); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(b.String()) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
