package safehttp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
)

// proxyKey is under which a request carries its proxy.
type proxyKey struct{}

// proxyAnswer says what a proxy that refuses to connect says.
func proxyAnswer(_ context.Context, proxy *url.URL, req *http.Request, resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusProxyAuthRequired:
		return &RefusedError{What: "the proxy " + proxy.Host + " wants credentials (407)", Remedy: "put them into the proxy's URL, as in http://user:password@proxy:3128"}
	case http.StatusForbidden, http.StatusMethodNotAllowed:
		return &RefusedError{
			What:   fmt.Sprintf("the proxy %s does not connect to %s (%d %s)", proxy.Host, req.Host, resp.StatusCode, http.StatusText(resp.StatusCode)),
			Remedy: "allow it there, or add the host to NO_PROXY",
		}
	}
	return fmt.Errorf("the proxy %s cannot connect to %s: %d %s", proxy.Host, req.Host, resp.StatusCode, http.StatusText(resp.StatusCode))
}

func withProxy(ctx context.Context, proxy *url.URL) context.Context {
	if proxy == nil {
		return ctx
	}
	return context.WithValue(ctx, proxyKey{}, proxy)
}

// dialProxy connects to a proxy whose URL is https. What the operator says of a registry's certificates is not about the proxy's: the roots
// are the client's own.
func dialProxy(dialer *net.Dialer, roots *x509.CertPool) func(ctx context.Context, network, address string) (net.Conn, error) {
	secure := &tls.Dialer{NetDialer: dialer, Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := secure.DialContext(ctx, network, address)
		if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
			return nil, &RefusedError{
				What:   fmt.Sprintf("TLS to the proxy %s: %v", address, err),
				Remedy: "add the CA of the proxy to those that this machine trusts, or give the right name in HTTPS_PROXY; --registry-config is not for proxies",
			}
		}
		return conn, err
	}
}
