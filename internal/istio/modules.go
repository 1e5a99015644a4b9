package istio

import "github.com/gateway-agent/gateway-agent/internal/oci/registries"

// insecureRegistries leaves out what names no registry: such a value has no effect with pilot-agent either.
func (m *mapping) insecureRegistries() (hosts []string) {
	for _, host := range list(m.in.Env["WASM_INSECURE_REGISTRIES"]) {
		if err := registries.CheckInsecure(host); err != nil {
			m.warn("WASM_INSECURE_REGISTRIES: %v: ignored", err)
			continue
		}
		hosts = append(hosts, host)
	}
	return hosts
}
