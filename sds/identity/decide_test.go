package identity

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// place makes empty files, and gives back the root under which they are.
func place(t *testing.T, files ...string) string {
	t.Helper()
	root, err := os.MkdirTemp("", "id") // t.TempDir is too long for a unix socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, f)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestDecide(t *testing.T) {
	const spiffe = "var/run/secrets/workload-spiffe-credentials/"
	gke := []string{spiffe + "certificates.pem", spiffe + "private_key.pem", spiffe + "ca_certificates.pem"}
	mounted := []string{spiffe + "cert-chain.pem", spiffe + "key.pem", spiffe + "root-cert.pem"}
	etc := []string{"etc/certs/cert-chain.pem", "etc/certs/key.pem", "etc/certs/root-cert.pem"}
	for name, tc := range map[string]struct {
		files  []string
		socket string // "", "live", "dead", "missing"
		mode   string
		ca     bool
		output string
		source string
		cert   string // of source Files
		root   string // of source CA
		err    string
	}{
		"nothing":                       {source: None},
		"authority":                     {ca: true, source: CA},
		"files before all":              {files: append(etc, mounted...), socket: "live", ca: true, source: Files, cert: mounted[0]},
		"gke before etc":                {files: append(etc, gke...), ca: true, source: Files, cert: gke[0]},
		"etc":                           {files: etc, ca: true, source: Files, cert: etc[0]},
		"a pair without root":           {files: etc[:2], ca: true, source: Files, cert: etc[0]},
		"a key alone is nothing":        {files: etc[1:2], ca: true, source: CA},
		"socket before authority":       {socket: "live", ca: true, source: External},
		"dead socket":                   {socket: "dead", ca: true, source: CA},
		"no socket file":                {socket: "missing", ca: true, source: CA},
		"own output is no source":       {files: etc, ca: true, output: "etc/certs", source: CA},
		"output elsewhere":              {files: etc, ca: true, output: "out", source: Files, cert: etc[0]},
		"output through a link":         {files: etc, ca: true, output: "link", source: CA},
		"root mounted alone":            {files: etc[2:], ca: true, source: CA, root: etc[2]},
		"root in the output":            {files: etc[2:], ca: true, output: "etc/certs", source: CA},
		"root of spiffe alone":          {files: mounted[2:], ca: true, source: CA},
		"spiffe without root":           {files: mounted[:2], ca: true, source: CA},
		"spiffe without root, no CA":    {files: mounted[:2], source: Files, cert: mounted[0]},
		"part of spiffe, whole etc":     {files: append(mounted[:2:2], etc...), ca: true, source: Files, cert: etc[0]},
		"part of gke, whole spiffe":     {files: append(gke[:2:2], mounted...), ca: true, source: Files, cert: mounted[0]},
		"only authority":                {files: etc, socket: "live", mode: CA, ca: true, source: CA},
		"only authority, there is none": {files: etc, mode: CA, err: "no certificate authority"},
		"only external, not there yet":  {files: etc, socket: "missing", mode: External, ca: true, source: External},
		"only external, dead":           {socket: "dead", mode: External, ca: true, source: External},
		"only external, no socket":      {mode: External, ca: true, err: "no socket"},
		"only files, not there yet":     {mode: Files, ca: true, socket: "live", source: Files, cert: etc[0]},
		"only files":                    {files: gke, mode: Files, source: Files, cert: gke[0]},
		"none wanted":                   {files: etc, socket: "live", mode: None, ca: true, source: None},
		"unknown":                       {mode: "x", ca: true, err: "choose auto, files, external, ca or none"},
	} {
		t.Run(name, func(t *testing.T) {
			root := place(t, tc.files...)
			p := Places{Mode: tc.mode, Files: Mounted(root), CA: tc.ca}
			if tc.socket != "" {
				p.Socket = filepath.Join(root, "socket")
				listen(t, p.Socket, tc.socket)
			}
			if tc.output != "" {
				p.Output = filepath.Join(root, tc.output)
			}
			if tc.output == "link" {
				if err := os.Symlink(filepath.Join(root, "etc/certs"), p.Output); err != nil {
					t.Fatal(err)
				}
			}
			got, err := Decide(p)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("Decide: %v, want %q", err, tc.err)
			}
			if err != nil {
				return
			}
			rel := func(path string) string { return strings.TrimPrefix(path, root+"/") }
			if got.Source != tc.source || rel(got.Files.Cert) != tc.cert || got.Why == "" || got.Source == CA && rel(got.Files.Root) != tc.root {
				t.Errorf("Decide: %+v, want %s", got, tc.source)
			}
			if (got.Source == External) != (got.Socket != "") {
				t.Errorf("Decide: socket %q of source %s", got.Socket, got.Source)
			}
		})
	}
	if _, err := Decide(Places{Socket: "relative"}); err == nil || !strings.Contains(err.Error(), "must be absolute") {
		t.Errorf("relative path: %v", err)
	}
}

// listen makes a socket that is live, or whose listener is gone.
func listen(t *testing.T, path, how string) {
	t.Helper()
	if how == "missing" {
		return
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if how == "live" {
		t.Cleanup(func() { l.Close() })
		return
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
}
