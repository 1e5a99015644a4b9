// Make builds the images of testdata/images with the tools that people use, pushes each to a real registry and keeps what the registry
// then has as an OCI layout. Run it in the root of the repository, as root, after "make tools":
//
//	apt-get install buildah skopeo umoci runc tar
//	go install github.com/google/go-containerregistry/cmd/crane@v0.22.1
//	(buildctl and buildkitd of BuildKit v0.25 on PATH)
//	PATH=$PATH:/usr/sbin:$(go env GOPATH)/bin go run ./testdata/images/make [name …]
//
// Every image holds policywasm/deny.wasm; only oras-component holds a component instead, which must be refused.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"
)

const out = "testdata/images"

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "make:", err)
		os.Exit(1)
	}
}

// rig is where the tools work: a directory with the files they pack, a registry and a build daemon.
type rig struct {
	dir      string
	registry string
	buildkit string
}

func run(ctx context.Context, only []string) error {
	dir, err := os.MkdirTemp("", "images")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := &rig{dir: dir, buildkit: "unix://" + dir + "/buildkit.sock"}
	if err := r.files(); err != nil {
		return err
	}
	stop, err := r.serve(ctx)
	if err != nil {
		return err
	}
	defer stop()
	for _, image := range images {
		if len(only) > 0 && !slices.Contains(only, image.name) {
			continue
		}
		fmt.Println(image.name)
		if err := r.make(ctx, image); err != nil {
			return fmt.Errorf("%s: %w", image.name, err)
		}
	}
	return nil
}

func (r *rig) make(ctx context.Context, image image) error {
	if err := image.push(ctx, r, r.registry+"/"+image.name+":v1"); err != nil {
		return err
	}
	return r.keep(ctx, image.name)
}

// files writes what the tools pack.
func (r *rig) files() error {
	module, err := os.ReadFile("policywasm/deny.wasm")
	if err != nil {
		return err
	}
	component := "\x00asm\x0d\x00\x01\x00" // the empty one
	for name, body := range map[string]string{
		"plugin.wasm": string(module), "filter.wasm": string(module), "wasm.wasm": string(module), "component.wasm": component, "README.md": "A plugin.\n",
		"amd64.wasm": "the image for this platform has no module\n", "config.json": `{"type":"envoy_proxy"}`, "d/plugin.wasm": string(module),
		"cncf.json": `{"architecture":"wasm","os":"wasip1","layerDigests":[]}`, "dotted/filter.wasm": string(module),
		"plain.dockerfile":  "FROM scratch\nCOPY plugin.wasm ./\n",
		"other.dockerfile":  "FROM scratch\nCOPY README.md filter.wasm /opt/plugins/\n",
		"layers.dockerfile": "FROM scratch\nCOPY README.md /\nCOPY config.json /etc/\nCOPY plugin.wasm /\n",
		// These two hold more, or buildah and skopeo would find the layer in the registry, in gzip.
		"zstd.dockerfile":   "FROM scratch\nCOPY README.md plugin.wasm /\n",
		"skopeo.dockerfile": "FROM scratch\nCOPY config.json plugin.wasm /\n",
		"empty.dockerfile":  "FROM scratch\nCOPY README.md /\n",
		"arch.dockerfile":   "FROM scratch\nARG TARGETARCH\nCOPY ${TARGETARCH}.wasm /plugin.wasm\n",
	} {
		path := filepath.Join(r.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// serve starts the registry and the build daemon.
func (r *rig) serve(ctx context.Context) (stop func(), err error) {
	config := fmt.Sprintf("version: 0.1\nlog: {level: info}\nstorage: {filesystem: {rootdirectory: %s/registry}}\nhttp: {addr: 127.0.0.1:0, secret: x}\n", r.dir)
	if err := os.WriteFile(r.dir+"/registry.yml", []byte(config), 0o600); err != nil {
		return nil, err
	}
	binary, err := filepath.Abs(".tools/registry")
	if err != nil {
		return nil, err
	}
	registry := exec.CommandContext(ctx, binary, "serve", r.dir+"/registry.yml")
	log, err := registry.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := registry.Start(); err != nil {
		return nil, err
	}
	if r.registry, err = listening(log); err != nil {
		return nil, err
	}
	daemon := exec.CommandContext(ctx, "buildkitd", "--root", r.dir+"/buildkit", "--addr", r.buildkit, "--oci-worker-snapshotter=native", "--oci-worker-net=host")
	if err := daemon.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = daemon.Process.Signal(os.Interrupt)
		_ = daemon.Wait()
		_ = registry.Process.Kill()
		_ = registry.Wait()
	}, nil
}

func listening(log io.Reader) (string, error) {
	at := regexp.MustCompile(`listening on (127\.0\.0\.1:\d+)`)
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		if m := at.FindStringSubmatch(lines.Text()); m != nil {
			go func() { _, _ = io.Copy(io.Discard, log) }()
			return m[1], nil
		}
	}
	return "", errors.New("the registry did not start")
}

// keep copies what the registry has, byte for byte, into the tree.
func (r *rig) keep(ctx context.Context, name string) error {
	repo, err := r.repository(name)
	if err != nil {
		return err
	}
	dir := filepath.Join(out, name)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	store, err := oci.New(dir)
	if err != nil {
		return err
	}
	if _, err := oras.Copy(ctx, repo, "v1", store, "registry.test/"+name+":v1", oras.DefaultCopyOptions); err != nil {
		return err
	}
	return os.RemoveAll(dir + "/ingest")
}

func (r *rig) repository(name string) (*remote.Repository, error) {
	repo, err := remote.NewRepository(r.registry + "/" + name)
	if err == nil {
		repo.PlainHTTP = true
	}
	return repo, err
}

// sh runs a line in the rig's directory. $REF is where to push, $B buildah, $K buildctl.
func sh(line string) func(context.Context, *rig, string) error {
	return func(ctx context.Context, r *rig, ref string) error {
		cmd := exec.CommandContext(ctx, "sh", "-exc", line)
		cmd.Dir = r.dir
		cmd.Env = append(os.Environ(), "REF="+ref, "SOURCE_DATE_EPOCH=0", "BUILDAH_ISOLATION=chroot",
			"B=buildah --storage-driver vfs --root "+r.dir+"/buildah --runroot "+r.dir+"/buildah-run",
			"K=buildctl --addr "+r.buildkit+" build --frontend dockerfile.v0 --local context=. --local dockerfile=. --opt build-arg:SOURCE_DATE_EPOCH=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, strings.TrimSpace(string(text)))
		}
		return nil
	}
}
