package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// Limits of what the Dockerfile adds to its base, in bytes.
const (
	layerSize  = 48 << 20
	layerSizeZ = 18 << 20 // as registries have it
)

// builtImage is what tools/image/build has made of the Dockerfile for one architecture. This machine's has a real Envoy in a base like
// Envoy's distroless one, the other one's base is like Istio's proxyv2.
type builtImage struct {
	v1.Image
	t      *testing.T
	arch   string
	config *v1.ConfigFile
}

func openImage(t *testing.T, arch string) *builtImage {
	t.Helper()
	index, err := layout.ImageIndexFromPath(filepath.Join(filepath.Dir(envoyBinary), "image"))
	if err != nil {
		t.Fatalf("%v: run make image-check", err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range manifest.Manifests {
		if m.Annotations["org.opencontainers.image.ref.name"] != arch {
			continue
		}
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		return &builtImage{Image: img, t: t, arch: arch, config: config}
	}
	t.Fatalf("no image for %s in .tools/image: run make image-check", arch)
	return nil
}

// like is what the base of the image is like.
func (b *builtImage) like() string {
	if b.arch == runtime.GOARCH {
		return "envoy"
	}
	return "proxyv2"
}

// TestImage: the Dockerfile's two images, down to each file, its owner and its mode.
func TestImage(t *testing.T) {
	t.Parallel()
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		t.Run(arch, func(t *testing.T) {
			t.Parallel()
			b := openImage(t, arch)
			b.wantConfig()
			b.wantLayer()
			files := b.files()
			b.wantBinary(files["usr/local/bin/gateway-agent"].data, machine)
			b.wantBase(files)
		})
	}
}

// wantConfig: nothing of the base is left that would be handed to the agent as an argument, and nothing else is lost.
func (b *builtImage) wantConfig() {
	t := b.t
	t.Helper()
	type config struct {
		OS, Architecture, User, WorkingDir, StopSignal string
		Entrypoint, Cmd, Env                           []string
		Labels                                         map[string]string
	}
	c := b.config.Config
	got := config{b.config.OS, b.config.Architecture, c.User, c.WorkingDir, c.StopSignal, c.Entrypoint, c.Cmd, c.Env, c.Labels}
	version, revision := c.Labels["org.opencontainers.image.version"], c.Labels["org.opencontainers.image.revision"]
	delete(got.Labels, "io.buildah.version")
	b.wantVersion(version, revision)
	base := map[string]string{"envoy": "docker.io/envoyproxy/envoy:distroless-v1.40.0", "proxyv2": "docker.io/istio/proxyv2:distroless"}
	env := map[string]string{"envoy": "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt", "proxyv2": "ISTIO_META_ISTIO_PROXY_SHA=abc"}
	want := config{
		OS: "linux", Architecture: b.arch, User: "1337:1337", WorkingDir: "/", Entrypoint: []string{"/usr/local/bin/gateway-agent"},
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", env[b.like()], "XDG_STATE_HOME=/var/lib", "XDG_RUNTIME_DIR=/run"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "gateway-agent", "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.description": "gateway-agent beside Envoy, for ingress and egress gateways",
			"org.opencontainers.image.source":      "https://github.com/gateway-agent/gateway-agent",
			"org.opencontainers.image.version":     version, "org.opencontainers.image.revision": revision,
			"org.opencontainers.image.base.name": base[b.like()],
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the image's configuration (-want +got):\n%s", diff)
	}
}

// wantVersion: the image is called what the built agent calls itself.
func (b *builtImage) wantVersion(version, revision string) {
	b.t.Helper()
	out, err := exec.CommandContext(b.t.Context(), agentBinary, "version", "-o", "json").Output()
	if err != nil {
		b.t.Fatal(err)
	}
	var built struct{ Agent, Commit string }
	if err := json.Unmarshal(out, &built); err != nil {
		b.t.Fatalf("version -o json: %v in %s", err, out)
	}
	if version != built.Agent || revision != built.Commit {
		b.t.Errorf("labels for version %q, revision %q; the agent is %+v: run make image-check", version, revision, built)
	}
}

// wantLayer: what the Dockerfile adds is this, and each time it is built the same.
func (b *builtImage) wantLayer() {
	t := b.t
	t.Helper()
	layers, err := b.Layers()
	if err != nil || len(layers) != 2 {
		t.Fatalf("%d layers, %v; want the base's and ours", len(layers), err)
	}
	size, err := layers[1].Size()
	if err != nil || size > layerSizeZ {
		t.Errorf("the layer has %d bytes compressed, %v; want at most %d", size, err, layerSizeZ)
	}
	content, err := layers[1].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	var got []string
	var total int64
	eachEntry(t, content, func(h *tar.Header, _ io.Reader) {
		line := fmt.Sprintf("%v %d:%d /%s", h.FileInfo().Mode(), h.Uid, h.Gid, strings.TrimSuffix(h.Name, "/"))
		if h.Linkname != "" {
			line += " -> " + h.Linkname
		}
		got, total = append(got, line), total+h.Size
		if !h.ModTime.Equal(b.config.Created.Time) {
			t.Errorf("/%s is of %v, the image of %v: want one time for all", h.Name, h.ModTime, b.config.Created)
		}
	})
	if total > layerSize {
		t.Errorf("the layer has %d bytes, want at most %d", total, layerSize)
	}
	slices.SortFunc(got, func(a, b string) int { return strings.Compare(a[strings.Index(a, " /"):], b[strings.Index(b, " /"):]) })
	if diff := cmp.Diff(layerFiles, got); diff != "" {
		t.Errorf("what the Dockerfile adds (-want +got):\n%s", diff)
	}
}

var layerFiles = []string{
	"drwxr-xr-x 0:0 /etc",
	"drwxr-xr-x 1337:1337 /etc/istio",
	"drwxr-xr-x 1337:1337 /etc/istio/proxy",
	"drwxr-xr-x 0:0 /run",
	"drwxr-xr-x 1337:1337 /run/gateway-agent",
	"drwxr-xr-x 0:0 /usr",
	"drwxr-xr-x 0:0 /usr/local",
	"drwxr-xr-x 0:0 /usr/local/bin",
	"-rwxr-xr-x 0:0 /usr/local/bin/gateway-agent",
	"Lrwxrwxrwx 0:0 /usr/local/bin/pilot-agent -> gateway-agent",
	"drwxr-xr-x 0:0 /usr/share",
	"drwxr-xr-x 0:0 /usr/share/doc",
	"drwxr-xr-x 0:0 /usr/share/doc/gateway-agent",
	"-rw-r--r-- 0:0 /usr/share/doc/gateway-agent/LICENSE",
	"drwxr-xr-x 0:0 /var",
	"drwxr-xr-x 0:0 /var/lib",
	"drwxr-xr-x 1337:1337 /var/lib/gateway-agent",
	"drwxr-xr-x 1337:1337 /var/lib/istio",
	"drwxr-xr-x 1337:1337 /var/lib/istio/data",
}

// wantBinary: static, stripped, for the architecture, and for this machine's the same as what `make build` makes.
func (b *builtImage) wantBinary(program []byte, machine elf.Machine) {
	t := b.t
	t.Helper()
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	if file.Machine != machine {
		t.Errorf("the program is for %v, want %v", file.Machine, machine)
	}
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the program has %v: it is not static", p.Type)
		}
	}
	if file.Section(".symtab") != nil || file.Section(".debug_info") != nil {
		t.Error("the program is not stripped")
	}
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	for key, want := range map[string]string{"CGO_ENABLED": "0", "GOOS": "linux", "GOARCH": b.arch, "-trimpath": "true", "-tags": "grpcnotrace"} {
		if settings[key] != want {
			t.Errorf("built with %s=%q, want %q", key, settings[key], want)
		}
	}
	made, err := os.ReadFile(agentBinary)
	if err != nil {
		t.Fatal(err)
	}
	if b.arch == runtime.GOARCH && sha256.Sum256(made) != sha256.Sum256(program) {
		t.Error("make build and the Dockerfile have made different programs: run make image-check, or compare their flags")
	}
}

// wantBase: the base is as it was, and nobody needs a shell.
func (b *builtImage) wantBase(files map[string]imageFile) {
	t := b.t
	t.Helper()
	for name, f := range files {
		switch path.Base(name) {
		case "sh", "bash", "dash", "ash", "busybox", "go":
			t.Errorf("/%s is in the image", name)
		}
		if f.Mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Errorf("/%s is %v", name, f.Mode)
		}
	}
	want := map[string]fs.FileMode{
		"tmp": fs.ModeDir | fs.ModeSticky | 0o777, "var/run": fs.ModeSymlink | 0o777, "etc/passwd": 0o644, "usr/local/bin/envoy": 0o755,
		"etc/ssl/certs/ca-certificates.crt": 0o644,
	}
	if b.like() == "proxyv2" {
		want["var/lib/istio/envoy/envoy_bootstrap_tmpl.json"] = 0o644
	}
	for name, mode := range want {
		if f := files[name]; f.Mode != mode || f.uid != 0 {
			t.Errorf("/%s has mode %v and owner %d, want %v and root", name, f.Mode, f.uid, mode)
		}
	}
}

// imageFile is a file of an image, with its content if it is the Dockerfile's.
type imageFile struct {
	Mode fs.FileMode
	uid  int
	data []byte
}

// files are what a container sees of the image.
func (b *builtImage) files() map[string]imageFile {
	b.t.Helper()
	all := map[string]imageFile{}
	content := mutate.Extract(b)
	defer content.Close()
	eachEntry(b.t, content, func(h *tar.Header, r io.Reader) {
		f := imageFile{Mode: h.FileInfo().Mode(), uid: h.Uid}
		name := strings.Trim(h.Name, "/")
		if strings.HasSuffix(name, "-agent") {
			var err error
			if f.data, err = io.ReadAll(r); err != nil {
				b.t.Fatal(err)
			}
		}
		all[name] = f
	})
	return all
}

func eachEntry(t *testing.T, archive io.Reader, do func(*tar.Header, io.Reader)) {
	t.Helper()
	entries := tar.NewReader(archive)
	for {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		h.Name = strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if h.Name != "" {
			do(h, entries)
		}
	}
}
