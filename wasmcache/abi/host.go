package abi

import (
	"fmt"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Host is what matters about the Envoy that is to run a module. The zero Host is an unknown Envoy: missing host functions only warn.
type Host struct {
	// Version is Envoy's, like "1.40.0"; empty if unknown.
	Version string
	// Known tells that Version and Wasm are facts.
	Known bool
	// Wasm tells that this Envoy has a Wasm runtime for modules.
	Wasm bool
	// WASI is the number of WASI functions offered: 15, 18 or 45.
	WASI int
	// Newer tells that this Envoy is newer than those the checker was measured with: it may offer more.
	Newer bool
}

// The sets of WASI functions: up to Envoy 1.32, up to 1.38, and from 1.39 on. Each contains the one before. The first border is taken from the
// release dates, the second one was measured on 1.37 and 1.39.
const (
	wasiOldest = 15
	wasiSmall  = 18
	wasiLarge  = 45
)

// Minor versions of Envoy 1.x.
const (
	firstSmall = 33
	firstLarge = 39
	measured   = 40
)

// HostOf returns the host that an Envoy describes in the node of its first request. A node that does not say enough gives the unknown Host.
func HostOf(node *corev3.Node) Host {
	v := node.GetUserAgentBuildVersion().GetVersion()
	if node.GetUserAgentName() != "envoy" || v == nil {
		return Host{}
	}
	host := hostFor(v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
	if len(node.GetExtensions()) > 0 {
		host.Wasm = hasRuntime(node.GetExtensions())
	}
	return host
}

// HostForVersion returns the host for an Envoy release like "1.40.0" (or "v1.40.0", "1.40"), taken to be built with a Wasm runtime.
func HostForVersion(version string) (Host, bool) {
	fields := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(fields) == 2 {
		fields = append(fields, "0")
	}
	if len(fields) != 3 {
		return Host{}, false
	}
	var n [3]uint32
	for i, field := range fields {
		u, err := strconv.ParseUint(field, 10, 16)
		if err != nil {
			return Host{}, false
		}
		n[i] = uint32(u)
	}
	return hostFor(n[0], n[1], n[2]), true
}

// Key is equal for hosts that get equal verdicts with equal reasons; part of the key under which verdicts are kept.
func (h Host) Key() string {
	if !h.Known {
		return "unknown"
	}
	return fmt.Sprintf("envoy-%s-wasi%d-wasm=%t", h.Version, h.WASI, h.Wasm)
}

// String names the host in reasons.
func (h Host) String() string {
	if !h.Known {
		return "an unknown Envoy"
	}
	return "Envoy " + h.Version
}

func hostFor(major, minor, patch uint32) Host {
	host := Host{Version: fmt.Sprintf("%d.%d.%d", major, minor, patch), Known: true, Wasm: true, WASI: wasiOldest}
	if major > 1 || minor >= firstSmall {
		host.WASI = wasiSmall
	}
	if major > 1 || minor >= firstLarge {
		host.WASI = wasiLarge
	}
	host.Newer = major > 1 || minor > measured
	return host
}

// hasRuntime tells whether one of Envoy's extensions runs modules. The runtime "null" is for code compiled into Envoy.
func hasRuntime(extensions []*corev3.Extension) bool {
	for _, e := range extensions {
		if e.GetCategory() == "envoy.wasm.runtime" && e.GetName() != "envoy.wasm.runtime.null" {
			return true
		}
	}
	return false
}
