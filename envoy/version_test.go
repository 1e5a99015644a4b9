package envoy

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestReadVersion(t *testing.T) {
	newRig(t, hello()) // fails without an Envoy
	v, err := ReadVersion(t.Context(), envoyBinary)
	if err != nil || !v.supported() || len(v.Commit) != 40 || v.String() != v.Number {
		t.Errorf("ReadVersion(%s) = %+v, %v", envoyBinary, v, err)
	}
}

func TestParseVersion(t *testing.T) {
	for out, want := range map[string]Version{
		"\n.tools/envoy  version: 9e55/1.40.0/Clean/RELEASE/BoringSSL\n\n":    {"1.40.0", "9e55", "Clean/RELEASE/BoringSSL"},
		"envoy  version: ab01/1.41.0-dev/Modified/DEBUG/BoringSSL":            {"1.41.0-dev", "ab01", "Modified/DEBUG/BoringSSL"},
		"warning: x\nenvoy  version: ab01/2.0.1/Clean/RELEASE/BoringSSL-FIPS": {"2.0.1", "ab01", "Clean/RELEASE/BoringSSL-FIPS"},
	} {
		if got, ok := parseVersion(out); !ok || got != want || !got.supported() {
			t.Errorf("parseVersion(%q) = %+v, %v; want %+v", out, got, ok, want)
		}
	}
	for _, out := range []string{"", "nginx version: nginx/1.24.0", "version: 1.40.0", "v22.1.0", "version: xyz/1.40.0/Clean/R/B", "version: ab/1.40/Clean"} {
		if got, ok := parseVersion(out); ok {
			t.Errorf("parseVersion(%q) = %+v; want it refused", out, got)
		}
	}
	for _, number := range []string{"1.29.9", "0.50.0", "99999999999999999999.0.0"} {
		if (Version{Number: number}).supported() {
			t.Errorf("version %s is supported", number)
		}
	}
}

func TestReadVersionRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ script, want string }{
		"other program": {"echo nginx version: nginx/1.24.0", `does not look like Envoy's (it printed "nginx version: nginx/1.24.0")`},
		"nothing":       {"exit 0", "it printed nothing"},
		"fails":         {"echo oops >&2; exit 4", `exit status 4 (it printed "oops")`},
		"too old":       {"echo 'envoy  version: ab/1.22.3/Clean/RELEASE/BoringSSL'", "version 1.22.3, too old: get Envoy 1.30 or newer"},
		"endless":       {"yes", ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			file := script(t, tt.script)
			v, err := ReadVersion(ctx, file)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), file) {
				t.Errorf("ReadVersion = %+v, %v; want an error with %s and the path", v, err, tt.want)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestReadVersionTimeout(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := ReadVersion(ctx, script(t, "sleep 60"))
	if err == nil || time.Since(began) > 3*time.Second {
		t.Errorf("ReadVersion of a hung binary = %v after %v; want an error soon", err, time.Since(began))
	}
}

func TestFind(t *testing.T) {
	file := script(t, "true")
	if got, err := Find(file); got != file || err != nil {
		t.Errorf("Find(%s) = %s, %v", file, got, err)
	}
	t.Setenv("PATH", filepath.Dir(file))
	if got, err := Find(""); got != file || err != nil {
		t.Errorf("Find on PATH = %s, %v; want %s", got, err, file)
	}
	t.Setenv("PATH", t.TempDir())
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"": "no envoy on PATH", "/nonexistent/envoy": "/nonexistent/envoy", text: "permission denied", filepath.Dir(text): "is a directory", "envoy-9": "envoy-9 not found",
	} {
		_, err := Find(path)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "make tools") {
			t.Errorf("Find(%q) = %v; want %q and how to get Envoy", path, err, want)
		}
	}
}

func TestValidate(t *testing.T) {
	rig := newRig(t, hello())
	if err := Validate(t.Context(), envoyBinary, rig.bootstrap); err != nil {
		t.Errorf("Validate of a good bootstrap = %v", err)
	}
	write := func(text string) {
		if err := os.WriteFile(rig.bootstrap, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const secret = `"node":{"id":"HIDDEN"}`
	for text, want := range map[string]string{
		`{` + secret + `,"static_resources":{"clusters":[{"name":"a","nope":1}]}}`:                        "no such field: 'nope'",
		`{` + secret + `,"static_resources":{"clusters":[{"name":"a","connect_timeout":"-5s"}]}}`:         "Invalid duration: Expected positive duration",
		`{` + secret + `,"bootstrap_extensions":[{"name":"x","typed_config":{"@type":"types/nope.No"}}]}`: "could not find @type 'types/nope.No'",
		`{` + secret + `: {`: "invalid JSON",
	} {
		write(text)
		err := Validate(t.Context(), envoyBinary, rig.bootstrap)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), rig.bootstrap) {
			t.Errorf("Validate(%s) = %v; want %q and the file", text, err, want)
		}
		if strings.Contains(err.Error(), "HIDDEN") || strings.Contains(err.Error(), "goo.gle") {
			t.Errorf("Validate(%s) prints the bootstrap or library marks: %v", text, err)
		}
	}
	if err := Validate(t.Context(), script(t, "echo 'no flag --mode' >&2; exit 1"), "b"); err == nil || !strings.Contains(err.Error(), "no flag --mode") {
		t.Errorf("Validate by another program = %v; want what it printed", err)
	}
}
