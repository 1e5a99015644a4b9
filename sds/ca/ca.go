// Package ca is a client of Istio's certificate authority: it has certificate requests signed by CreateCertificate of
// istio.v1.auth.IstioCertificateService, which istiod and others serve.
//
// Each request makes a connection of its own, which is closed afterwards. It is needed twice a day; in return roots, token and
// certificates are those of this moment, and no connection is ever stuck.
package ca

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	pb "istio.io/api/security/v1alpha1"

	"github.com/gateway-agent/gateway-agent/internal/upstream"
)

const (
	defaultTimeout = 10 * time.Second
	maxAnswer      = 1 << 20 // bytes; a chain has some thousands
	maxText        = 500     // bytes of what the authority says about a refusal
)

// Config is what a Client needs.
type Config struct {
	Upstream   upstream.Config // how the authority is reached. Certificate: what proves who we are when there is no own certificate yet
	CertSigner string          // which of its signers the authority is asked to use; default: the authority's choice
	Timeout    time.Duration   // of one request, connecting included; default 10 s
}

// Client asks one authority. Its methods may be called from any goroutine.
type Client struct{ cfg Config }

// New checks the configuration.
func New(cfg Config) (*Client, error) {
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("certificate authority: timeout %v must not be negative", cfg.Timeout)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	conn, err := upstream.Dial(cfg.Upstream) // connects to nothing
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	return &Client{cfg: cfg}, conn.Close()
}

// Sign has a PEM certificate request signed for a time. The caller is known by the token; when there is none, or the authority refuses it,
// by own, which may be nil, and then by the configured certificate. A client certificate that the authority does not know would end
// the connection, so it is shown only without the token. The answer is as the authority sent it, PEM texts, leaf first.
func (c *Client) Sign(ctx context.Context, csr []byte, life time.Duration, own *tls.Certificate) ([]string, error) {
	var problems []error
	proofs, err := c.proofs(own)
	if err != nil {
		problems = append(problems, err)
	}
	for _, p := range proofs {
		chain, err := c.ask(ctx, p, csr, life)
		if err == nil {
			return chain, nil
		}
		problems = append(problems, fmt.Errorf("%s: %w", p.name, err))
		if ctx.Err() != nil || p.token != "" && !refused(err) {
			break // not about who we are: another proof changes nothing
		}
	}
	return nil, fmt.Errorf("ask the certificate authority at %s: %w", c.cfg.Upstream.Address, errors.Join(problems...))
}

// proof is a way of showing who we are.
type proof struct {
	name        string
	token       string
	certificate *tls.Certificate
}

// proofs lists the ways there are; with none, the authority is asked without: it may know us by the headers or the network.
func (c *Client) proofs(own *tls.Certificate) ([]proof, error) {
	var all []proof
	var problem error
	u := c.cfg.Upstream
	if u.Token != nil && (!u.Plaintext || u.PlaintextToken) {
		token, err := u.Token()
		if err != nil {
			problem = fmt.Errorf("read the token: %w", err)
		} else if token != "" {
			all = append(all, proof{name: "with the token", token: token})
		}
	}
	if !u.Plaintext {
		if own != nil {
			all = append(all, proof{name: "with the own certificate", certificate: own})
		}
		if u.Certificate != nil {
			configured, err := u.Certificate()
			if err != nil {
				problem = errors.Join(problem, fmt.Errorf("read the client certificate: %w", err))
			} else if configured != nil {
				all = append(all, proof{name: "with the configured certificate", certificate: configured})
			}
		}
	}
	if len(all) == 0 && problem == nil {
		all = append(all, proof{name: "without token and certificate"})
	}
	return all, problem
}

func (c *Client) ask(ctx context.Context, p proof, csr []byte, life time.Duration) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	u := c.cfg.Upstream
	u.Token = func() (string, error) { return p.token, nil }
	u.Certificate = func() (*tls.Certificate, error) { return p.certificate, nil }
	conn, err := upstream.Dial(u)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	metadata, err := structpb.NewStruct(map[string]any{"CertSigner": c.cfg.CertSigner}) // istiod reads the key even when there is no signer to name
	if err != nil {
		return nil, fmt.Errorf("cert signer: %w", err)
	}
	answer, err := pb.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, &pb.IstioCertificateRequest{
		Csr: string(csr), ValidityDuration: int64((life + time.Second - 1) / time.Second), Metadata: metadata,
	}, grpc.MaxCallRecvMsgSize(maxAnswer))
	if err != nil {
		return nil, c.explain(err)
	}
	return answer.GetCertChain(), nil
}

func refused(err error) bool {
	code := status.Code(err)
	return code == codes.Unauthenticated || code == codes.PermissionDenied
}

// Error is a request that the authority, or the way to it, refused.
type Error struct {
	Code codes.Code
	text string
}

func (e *Error) Error() string { return e.text }

// GRPCStatus makes status.Code work.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.text) }

// explain writes an error on one short line and adds what to do about it.
func (c *Client) explain(err error) error {
	s := status.Convert(err)
	text := presentable(upstream.Plain(s.Message()))
	if s.Code() == codes.DeadlineExceeded { // the authority may notice it before us
		text = fmt.Sprintf("no answer within %v", c.cfg.Timeout)
		if _, last, ok := strings.Cut(s.Message(), "last connection error: "); ok {
			text += ": " + presentable(upstream.Plain(last))
		}
	}
	if hint := hints(s.Code(), text); hint != "" {
		text += " (" + hint + ")"
	}
	return &Error{Code: s.Code(), text: fmt.Sprintf("%v: %s", s.Code(), text)}
}

func hints(code codes.Code, text string) string {
	switch {
	case code == codes.Unauthenticated:
		return "is the token fresh, for this authority's audience, and is the cluster id the one the authority knows?"
	case code == codes.InvalidArgument && strings.Contains(text, "TTL"):
		return "ask for a shorter lifetime: --identity-life, or SECRET_TTL in an Istio gateway"
	case code == codes.PermissionDenied:
		return "the authority knows the caller but does not let it have this identity"
	case code == codes.Unimplemented:
		return "nothing at this address serves istio.v1.auth.IstioCertificateService: correct the address"
	case strings.Contains(text, "unknown authority"):
		return "the authority's own certificate is signed by none of the configured roots: correct the root file"
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return "the authority speaks plaintext on this port: use its TLS port"
	}
	return ""
}

// presentable is a peer's text on one line, bounded, without anything that looks like PEM.
func presentable(text string) string {
	text, _, _ = strings.Cut(strings.ToValidUTF8(text, "?"), "-----BEGIN")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	if text == "" {
		return "no reason given"
	}
	return text
}
