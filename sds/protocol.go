package sds

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// StreamSecrets is the state-of-the-world protocol.
func (s *Server) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	return s.serve(stream.Context(), &sotw{stream: stream})
}

// DeltaSecrets is the incremental protocol.
func (s *Server) DeltaSecrets(stream secretv3.SecretDiscoveryService_DeltaSecretsServer) error {
	return s.serve(stream.Context(), &delta{stream: stream})
}

// FetchSecrets answers once: with what can be served within [Config.Wait], or with the reasons why nothing can.
func (s *Server) FetchSecrets(ctx context.Context, req *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
	if err := checkType(req.GetTypeUrl()); err != nil {
		return nil, err
	}
	st := s.newStream()
	defer st.close()
	if err := st.handle(request{subscribe: req.GetResourceNames()}); err != nil {
		return nil, err
	}
	answers := map[string]response{}
	for len(answers) < len(st.subs) {
		for _, r := range st.due(time.Now()) {
			answers[r.name] = r
		}
		if len(answers) < len(st.subs) && !st.pause(ctx) {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return fetched(answers)
}

func fetched(answers map[string]response) (*discoveryv3.DiscoveryResponse, error) {
	out := &discoveryv3.DiscoveryResponse{TypeUrl: TypeURL}
	var reasons []string
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		if r := answers[name]; r.body == nil {
			reasons = append(reasons, r.reason)
		} else {
			out.Resources, out.VersionInfo = append(out.Resources, r.body), r.version
		}
	}
	if len(out.Resources) == 0 && len(reasons) > 0 {
		return nil, status.Error(codes.NotFound, strings.Join(reasons, "; "))
	}
	return out, nil
}

// pause waits until there may be something to send; false means that ctx ended.
func (st *stream) pause(ctx context.Context) bool {
	timer := time.NewTimer(st.untilRefusal(time.Now()))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-st.wake:
	case <-timer.C:
	}
	return true
}

func checkType(url string) error {
	if url != "" && url != TypeURL {
		return status.Errorf(codes.InvalidArgument, "this service has secrets only, not %q", url)
	}
	return nil
}

// sotw is a state-of-the-world stream: each request holds all names.
type sotw struct {
	stream secretv3.SecretDiscoveryService_StreamSecretsServer
	names  map[string]bool
}

func (p *sotw) recv() (request, error) {
	req, err := p.stream.Recv()
	if err != nil {
		return request{}, err
	}
	if err := checkType(req.GetTypeUrl()); err != nil {
		return request{}, err
	}
	r := request{nonce: req.GetResponseNonce()}
	r.rejected, r.nack = rejection(req.GetErrorDetail())
	names := map[string]bool{}
	for _, name := range req.GetResourceNames() {
		if !names[name] && !p.names[name] {
			r.subscribe = append(r.subscribe, name)
		}
		names[name] = true
	}
	for name := range p.names {
		if !names[name] {
			r.unsubscribe = append(r.unsubscribe, name)
		}
	}
	if first := p.names == nil; first && len(names) == 1 && req.GetVersionInfo() != "" {
		r.held = map[string]string{r.subscribe[0]: ""} // has one; sent again all the same, since which content that was is not certain
	}
	p.names = names
	return r, nil
}

func (p *sotw) send(r response) error {
	body := r.body
	if body == nil {
		body = refusal(r.reason)
	}
	return p.stream.Send(&discoveryv3.DiscoveryResponse{
		TypeUrl: TypeURL, VersionInfo: r.version, Nonce: r.nonce, Resources: []*anypb.Any{body},
	})
}

// refusal is a resource that no client can decode (its first bytes are no protobuf field), with the reason as its content.
// It must not be decodable: see the package comment.
func refusal(reason string) *anypb.Any {
	return &anypb.Any{TypeUrl: TypeURL, Value: append([]byte{0xff, 0xff}, " gateway-agent cannot serve this: "+reason...)}
}

// delta is an incremental stream.
type delta struct {
	stream secretv3.SecretDiscoveryService_DeltaSecretsServer
}

func (p *delta) recv() (request, error) {
	req, err := p.stream.Recv()
	if err != nil {
		return request{}, err
	}
	if err := checkType(req.GetTypeUrl()); err != nil {
		return request{}, err
	}
	r := request{
		nonce: req.GetResponseNonce(), held: req.GetInitialResourceVersions(), again: true,
		subscribe: slices.Clone(req.GetResourceNamesSubscribe()), unsubscribe: req.GetResourceNamesUnsubscribe(),
	}
	r.rejected, r.nack = rejection(req.GetErrorDetail())
	return r, nil
}

func (p *delta) send(r response) error {
	out := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: TypeURL, SystemVersionInfo: r.version, Nonce: r.nonce}
	if r.body == nil {
		out.RemovedResources = []string{r.name}
	} else {
		out.Resources = []*discoveryv3.Resource{{Name: r.name, Version: r.version, Resource: r.body}}
	}
	return p.stream.Send(out)
}

func rejection(detail *rpcstatus.Status) (bool, string) {
	if detail == nil {
		return false, ""
	}
	return true, detail.GetMessage()
}

// ended turns the normal ends of a stream into nil.
func ended(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}
