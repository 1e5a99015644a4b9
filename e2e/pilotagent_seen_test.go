package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1alpha1"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// seen is what a control plane or a user sees of one of the programs, by a name for each detail.
type seen map[string]string

const (
	adsService = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	caService  = "istio.v1.auth.IstioCertificateService"
)

// seenByIstiod is what the control plane is told: node, headers, requests, the certificate request. It is also how Envoy is called.
func seenByIstiod(d *duel, found seen) {
	d.t.Helper()
	d.agent.eventually(10*time.Second, "a certificate and routes are asked for", d.asked)
	streams, calls := d.tap.take(adsService), d.tap.take(caService)
	found["xds/method"] = streams[0].method
	found.headers("xds/header/", streams[0])
	found.stream(d, streams[0])
	if len(calls) > 0 {
		found["csr/method"] = calls[0].method
		found.headers("csr/header/", calls[0])
		found.certificateRequest(d, calls[0])
	}
	found.envoy(d)
}

// asked tells whether all that is compared has been said: routes are asked for last.
func (d *duel) asked() error {
	streams, calls := d.tap.take(adsService), d.tap.take(caService)
	if len(calls) == 0 || len(calls[0].requests) == 0 {
		return errors.New("no request for a certificate")
	}
	if len(streams) == 0 || !slices.ContainsFunc(streams[0].requests, func(raw []byte) bool { return bytes.Contains(raw, []byte(xdstest.RDS)) }) {
		return errors.New("no request for routes")
	}
	return nil
}

// transport headers are grpc-go's.
var transportHeaders = []string{"user-agent", "content-type", "grpc-accept-encoding", "grpc-timeout", "te"}

func (s seen) headers(prefix string, call tappedCall) {
	for name, values := range call.header {
		if !slices.Contains(transportHeaders, name) {
			s[prefix+name] = strings.Join(values, " | ")
		}
	}
}

// stream reads the first stream's requests: the node, and in which order types are asked for.
func (s seen) stream(d *duel, call tappedCall) {
	var order []string
	for i, raw := range call.requests {
		var r discoveryv3.DeltaDiscoveryRequest // in both protocols the node is field 1; the type is 2 here, 4 there
		typeURL := ""
		if strings.HasSuffix(call.method, "DeltaAggregatedResources") {
			unmarshalFrame(d, raw, &r)
			typeURL = r.GetTypeUrl()
		} else {
			var whole discoveryv3.DiscoveryRequest
			unmarshalFrame(d, raw, &whole)
			typeURL, r.Node = whole.GetTypeUrl(), whole.GetNode()
		}
		if i == 0 {
			s.node(d, r.GetNode())
		} else if r.GetNode() != nil {
			s["xds/node told again"] = "yes"
		}
		if !slices.Contains(order, typeURL) && typeURL != xdstest.RDS { // routes come as soon as there is a listener
			order = append(order, typeURL)
		}
	}
	for i, typeURL := range order {
		order[i] = typeURL[strings.LastIndex(typeURL, ".")+1:]
	}
	s["xds/order of types"] = strings.Join(order, " ")
}

func unmarshalFrame(d *duel, raw []byte, into proto.Message) {
	d.t.Helper()
	if err := proto.Unmarshal(raw, into); err != nil {
		d.t.Fatalf("request: %v", err)
	}
}

func (s seen) node(d *duel, node *corev3.Node) {
	d.t.Helper()
	s["node/id"], s["node/cluster"] = node.GetId(), node.GetCluster()
	s["node/locality"] = fmt.Sprintf("%s/%s/%s", node.GetLocality().GetRegion(), node.GetLocality().GetZone(), node.GetLocality().GetSubZone())
	data, err := protojson.Marshal(node.GetMetadata())
	if err != nil {
		d.t.Fatal(err)
	}
	var metadata map[string]any
	if err := json.Unmarshal(data, &metadata); err != nil {
		d.t.Fatal(err)
	}
	s.flatten("node/metadata", metadata)
}

// flatten notes each leaf of a JSON value with its type: strings are quoted.
func (s seen) flatten(name string, value any) {
	object, ok := value.(map[string]any)
	if !ok || len(object) == 0 {
		s[name] = asJSON(value)
		return
	}
	for key, member := range object {
		s.flatten(name+"/"+key, member)
	}
}

func (s seen) certificateRequest(d *duel, call tappedCall) {
	d.t.Helper()
	var r security.IstioCertificateRequest
	unmarshalFrame(d, call.requests[0], &r)
	s["csr/validity"] = (time.Duration(r.GetValidityDuration()) * time.Second).String()
	s["csr/metadata"] = asJSON(r.GetMetadata().AsMap())
	block, rest := pem.Decode([]byte(r.GetCsr()))
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		d.t.Fatalf("not one PEM block: %q", r.GetCsr())
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		d.t.Fatal(err)
	}
	s["csr/block"], s["csr/subject"] = block.Type, csr.Subject.String()
	s["csr/names"] = fmt.Sprint(csr.URIs, csr.DNSNames, csr.IPAddresses, csr.EmailAddresses)
	for _, extension := range csr.Extensions {
		s["csr/extension/"+extension.Id.String()] = fmt.Sprintf("critical: %v", extension.Critical)
	}
	switch key := csr.PublicKey.(type) {
	case *rsa.PublicKey:
		s["csr/key"] = fmt.Sprintf("RSA %d", key.N.BitLen())
	case *ecdsa.PublicKey:
		s["csr/key"] = "ECDSA " + key.Curve.Params().Name
	default:
		s["csr/key"] = fmt.Sprintf("%T", key)
	}
}

// envoy notes Envoy's command line and environment.
func (s seen) envoy(d *duel) {
	d.t.Helper()
	_, pid := d.processes()
	if pid == 0 {
		s["envoy"] = "none"
		return
	}
	line := strings.Split(strings.TrimRight(readProc(d.t, pid, "cmdline"), "\x00"), "\x00")
	s["envoy/program"] = line[0]
	for i := 1; i < len(line); i++ {
		name, value, assigned := strings.Cut(line[i], "=")
		if !assigned && i+1 < len(line) && !strings.HasPrefix(line[i+1], "-") {
			i++
			value = line[i]
		}
		s["envoy/argument/"+name] = value
	}
	for pair := range strings.SplitSeq(strings.TrimRight(readProc(d.t, pid, "environ"), "\x00"), "\x00") {
		name, value, _ := strings.Cut(pair, "=")
		s["envoy/environment/"+name] = value
	}
	for _, port := range []string{"15000", "15020", "15021", "15090"} {
		for _, host := range []string{"127.0.0.1", "::1", d.pod} {
			if conn, err := net.DialTimeout("tcp", net.JoinHostPort(host, port), time.Second); err == nil {
				_ = conn.Close()
				s["port/"+net.JoinHostPort(host, port)] = "open"
			}
		}
	}
}
