package ecds

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	extensionConfig = "envoy.config.core.v3.TypedExtensionConfig"
	nullRuntime     = "envoy.wasm.runtime.null" // its code is the name of a plugin built into Envoy
	v8Runtime       = "envoy.wasm.runtime.v8"

	secretKey  = controlKey + "WASM_IMAGE_PULL_SECRET"
	policyKey  = controlKey + "WASM_IMAGE_PULL_POLICY"
	versionKey = controlKey + "WASM_PLUGIN_RESOURCE_VERSION"
)

// sum identifies content.
type sum [sha256.Size]byte

// blueprint is an upstream resource, taken apart: what is needed to make, at any time, what Envoy gets for it.
type blueprint struct {
	name     string
	version  string // upstream's
	kind     string
	allow    bool       // failure policy: pass traffic when there is no plugin
	ref      *Reference // the module it needs; nil: none
	fatal    error      // the reason why the module cannot even be asked for; only with ref
	runtime  string
	wrapper  *discoveryv3.Resource        // without the body; nil when there was none
	envURL   string                       // type URL of the envelope
	envelope *corev3.TypedExtensionConfig // without typed_config
	plugin   plugin                       // nil: not Wasm
	raw      *anypb.Any                   // what upstream sent
	full     sum                          // of everything, the secret included: another one means another pull
	public   sum                          // without the pull secret: the same one means that the same runs; safe to keep on disk
}

// parse takes a resource apart. With an error there is still a blueprint, with as much in it as could be understood.
func parse(res *discoveryv3.Resource) (*blueprint, error) {
	b := &blueprint{name: res.GetName(), version: res.GetVersion(), raw: res.GetResource(), envURL: res.GetResource().GetTypeUrl()}
	b.full = sha256.Sum256(b.raw.GetValue())
	b.public = b.full
	b.wrapper = &discoveryv3.Resource{Name: b.name, Aliases: res.GetAliases(), CacheControl: res.GetCacheControl(), Metadata: res.GetMetadata()}
	if got := typeName(b.envURL); got != extensionConfig {
		return b, fmt.Errorf("the resource is a %q, not a %s", got, extensionConfig)
	}
	b.envelope = &corev3.TypedExtensionConfig{}
	if err := proto.Unmarshal(b.raw.GetValue(), b.envelope); err != nil {
		return b, fmt.Errorf("decode %s: %w", extensionConfig, err)
	}
	if got := b.envelope.GetName(); got != b.name {
		return b, fmt.Errorf("the resource is named %q inside: both names must be the same", got)
	}
	typed := b.envelope.GetTypedConfig()
	if typed == nil {
		return b, errors.New("the resource has no typed_config")
	}
	b.envelope.TypedConfig = nil
	p, kind, err := decodePlugin(typed)
	b.kind = kind
	if err != nil {
		return b, err
	}
	if p == nil {
		return b, checkNested(typed)
	}
	b.plugin = p
	return b, b.inspect()
}

// inspect reads the plugin's configuration.
func (b *blueprint) inspect() error {
	cfg, err := b.plugin.config()
	if err != nil {
		return err
	}
	if err := b.identify(); err != nil {
		return err
	}
	b.allow = cfg.GetFailurePolicy() == wasmv3.FailurePolicy_FAIL_OPEN ||
		cfg.GetFailurePolicy() == wasmv3.FailurePolicy_UNSPECIFIED && cfg.GetFailOpen()
	if cfg.GetFailOpen() && cfg.GetFailurePolicy() != wasmv3.FailurePolicy_UNSPECIFIED {
		return errors.New("only one of fail_open and failure_policy can be set: remove fail_open")
	}
	vm := cfg.GetVmConfig()
	b.runtime = vm.GetRuntime()
	return b.readCode(vm)
}

// identify computes what the resource is compared by: a deterministic encoding, so that another order of map entries is
// no change.
func (b *blueprint) identify() error {
	full, err := b.assemble(b.plugin)
	if err != nil {
		return err
	}
	b.full = sha256.Sum256(full.GetValue())
	p := b.plugin.clone()
	p.dropEnv(func(key string) bool { return key == secretKey })
	public, err := b.assemble(p)
	if err != nil {
		return err
	}
	b.public = sha256.Sum256(public.GetValue())
	return nil
}

func (b *blueprint) readCode(vm *wasmv3.VmConfig) error {
	switch code := vm.GetCode().GetSpecifier().(type) {
	case *corev3.AsyncDataSource_Remote:
		if b.runtime == nullRuntime {
			return fmt.Errorf("remote code for the runtime %s, which has plugins built into Envoy only", nullRuntime)
		}
		return b.readRemote(code.Remote, vm.GetEnvironmentVariables().GetKeyValues())
	case *corev3.AsyncDataSource_Local:
		return b.readLocal(code.Local, vm.GetEnvironmentVariables().GetKeyValues())
	}
	return errors.New("the plugin names no code: set vm_config.code.remote or vm_config.code.local")
}

func (b *blueprint) readLocal(src *corev3.DataSource, env map[string]string) error {
	switch code := src.GetSpecifier().(type) {
	case nil:
		return errors.New("vm_config.code.local is empty: set filename, inline_bytes or inline_string")
	case *corev3.DataSource_Filename:
		if code.Filename == "" {
			return errors.New("vm_config.code.local.filename is empty")
		}
		if b.runtime == nullRuntime {
			return nil
		}
		path, err := filepath.Abs(code.Filename) // Envoy's working directory is the agent's
		if err != nil {
			return fmt.Errorf("resolve %s: %w", code.Filename, err)
		}
		b.ref = &Reference{
			Resource: b.name, URL: (&url.URL{Scheme: "file", Path: path}).String(),
			Always: env[policyKey] == "Always", ResourceVersion: env[versionKey],
		}
	}
	return nil
}

func (b *blueprint) readRemote(src *corev3.RemoteDataSource, env map[string]string) error {
	uri := strings.TrimSpace(src.GetHttpUri().GetUri())
	if uri == "" {
		return errors.New("vm_config.code.remote.http_uri.uri is empty")
	}
	if !strings.Contains(uri, "://") {
		uri = "oci://" + uri
	}
	ref := &Reference{Resource: b.name, URL: uri, SHA256: src.GetSha256(), ResourceVersion: env[versionKey]}
	if ref.SHA256 == "nil" { // what the first control planes send for "none"
		ref.SHA256 = ""
	}
	if d := src.GetHttpUri().GetTimeout(); d != nil && d.IsValid() && d.AsDuration() > 0 {
		ref.Timeout = d.AsDuration()
	}
	switch env[policyKey] {
	case "Always":
		ref.Always = true
	case "IfNotPresent":
	default:
		ref.Always = strings.HasPrefix(uri, "oci://") && strings.HasSuffix(uri, ":latest")
	}
	if secret, ok := env[secretKey]; ok {
		ref.PullSecret = []byte(secret)
		if strings.TrimSpace(secret) == "" {
			b.fatal = errors.New("the control plane sent an empty pull secret: it could not read the Secret that imagePullSecret names " +
				"(missing, not allowed, or the connection to the control plane is not secure)")
		}
	}
	b.ref = ref
	return nil
}

// build makes what Envoy gets. path is the module's file (ignored when the resource needs none); a salt other than 0
// makes the result differ in a field that Envoy knows, and in nothing else that matters.
func (b *blueprint) build(path string, salt int) (*anypb.Any, error) {
	if b.plugin == nil {
		return b.raw, nil
	}
	p := b.plugin.clone()
	p.dropEnv(func(key string) bool { return strings.HasPrefix(key, controlKey) })
	switch {
	case b.ref != nil:
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("the module store gave the path %q, which is not absolute", path)
		}
		p.setPath(salted(path, salt))
	case salt != 0:
		cfg, err := p.config()
		if err != nil {
			return nil, err
		}
		p.setName(cfg.GetName() + strings.Repeat("~", salt)) // inline code has no path to spell otherwise
	}
	if err := safe(p); err != nil {
		return nil, err
	}
	return b.assemble(p)
}

// safe is the last look before something leaves for Envoy: Envoy accepts remote code in an update, never fetches it and
// lets traffic through without the filter.
func safe(p plugin) error {
	cfg, err := p.config()
	if err != nil {
		return err
	}
	if cfg.GetVmConfig().GetCode().GetLocal() == nil {
		return errors.New("the converted plugin has no local code")
	}
	for key := range cfg.GetVmConfig().GetEnvironmentVariables().GetKeyValues() {
		if strings.HasPrefix(key, controlKey) {
			return fmt.Errorf("the converted plugin still has %s in its environment", key)
		}
	}
	return nil
}

// assemble puts a plugin back into the envelope.
func (b *blueprint) assemble(p plugin) (*anypb.Any, error) {
	typed, err := p.pack()
	if err != nil {
		return nil, err
	}
	env := proto.CloneOf(b.envelope)
	env.TypedConfig = typed
	return packAs(b.envURL, env)
}

// checkConverted says whether a stored form is one that build could have made.
func checkConverted(name string, form *anypb.Any) error {
	b, err := parse(&discoveryv3.Resource{Name: name, Resource: form})
	if err != nil {
		return err
	}
	if b.plugin == nil {
		return errors.New("it is not a Wasm filter")
	}
	return safe(b.plugin)
}

// secret is the pull secret, for keeping it out of texts.
func (b *blueprint) secret() []byte {
	if b == nil || b.ref == nil {
		return nil
	}
	return bytes.TrimSpace(b.ref.PullSecret)
}
