package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

// registry is a real registry behind a proxy that can fail.
type registry struct {
	t     *testing.T
	real  *registrytest.Registry
	proxy *registrytest.Proxy
}

func startRegistry(t *testing.T) *registry {
	t.Helper()
	r := registrytest.New(t)
	return &registry{t: t, real: r, proxy: registrytest.NewProxy(t, r.Addr)}
}

// uri is how a configuration names repository:tag.
func (r *registry) uri(repository string) string { return r.proxy.Ref(repository) }

// push stores a module as an image like the ones that `docker build` makes.
func (r *registry) push(repository, file string) {
	r.t.Helper()
	code, err := os.ReadFile(file)
	if err != nil {
		r.t.Fatal(err)
	}
	r.pushBytes(repository, code)
}

func (r *registry) pushBytes(repository string, code []byte) {
	r.t.Helper()
	name, tag, _ := strings.Cut(repository, ":")
	r.real.Push(r.t, name, tag, registrytest.Compat(r.t, code))
}

// fail answers every request whose path contains part with the status.
func (r *registry) fail(part string, status int) {
	r.proxy.Fail(part, registrytest.Fault{Status: status})
}

// delay holds every request whose path contains part.
func (r *registry) delay(part string, d time.Duration) {
	r.proxy.Fail(part, registrytest.Fault{Delay: d})
}

// heal ends fail and delay.
func (r *registry) heal() { r.proxy.Repair() }

// stop ends the registry for good; its proxy answers 502.
func (r *registry) stop() { r.real.Stop() }

func wasmDigest(t *testing.T, file string) string {
	t.Helper()
	code, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(code)
	return hex.EncodeToString(sum[:])
}
