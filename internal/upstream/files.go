package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

const (
	maxBundle = 8 << 20
	maxToken  = 64 << 10
)

// RootsFile reads a PEM bundle anew each time; for Config.Roots.
func RootsFile(path string) func() ([]byte, error) {
	return func() ([]byte, error) {
		bundle, err := readFile(path, maxBundle)
		if err != nil {
			return nil, err
		}
		if _, err := pool(bundle); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return bundle, nil
	}
}

// CertificateFiles reads a certificate chain and its key anew each time; for Config.Certificate.
func CertificateFiles(certPath, keyPath string) func() (*tls.Certificate, error) {
	return func() (*tls.Certificate, error) {
		chain, err := readFile(certPath, maxBundle)
		if err != nil {
			return nil, err
		}
		key, err := readFile(keyPath, maxBundle)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", certPath, keyPath, err)
		}
		return &pair, nil
	}
}

// TokenFile reads a token anew each time; for Config.Token. optional: without the file, or with an empty one, there is no token, which
// is no error.
func TokenFile(path string, optional bool) func() (string, error) {
	return func() (string, error) {
		data, err := readFile(path, maxToken)
		if optional && errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		text := strings.TrimSpace(string(data))
		if text == "" && !optional {
			return "", fmt.Errorf("%s: the file is empty", path)
		}
		return text, nil
	}
}

func readFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s: the file is larger than %d bytes", path, limit)
	}
	return data, nil
}

func pool(bundle []byte) (*x509.CertPool, error) {
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(bundle) {
		return nil, errors.New("it holds no PEM certificate")
	}
	return p, nil
}
