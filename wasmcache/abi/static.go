package abi

import (
	"fmt"
	"slices"
	"strings"
)

// findings are what the checks say of a module.
type findings struct {
	proofs   []string // this Envoy rejects it or dies of it
	doubts   []string // it may
	warnings []string // worth knowing
}

func (f *findings) prove(format string, args ...any) {
	f.proofs = append(f.proofs, fmt.Sprintf(format, args...))
}

func (f *findings) doubt(format string, args ...any) {
	f.doubts = append(f.doubts, fmt.Sprintf(format, args...))
}

func (f *findings) warn(format string, args ...any) {
	f.warnings = append(f.warnings, fmt.Sprintf(format, args...))
}

// maxPages is what Envoy allows a memory, 1 GiB.
const maxPages = 16384

// checkSections compares what the sections declare with what host offers.
func checkSections(host Host, m *module) *findings {
	f := &findings{}
	checkMarker(m, f)
	checkImports(host, m, f)
	checkMemory(m, f)
	checkExports(host, m, f)
	if m.localsPast != "" {
		f.prove("%s", m.localsPast)
	}
	if m.segmentPast != "" {
		f.prove("%s", m.segmentPast)
	}
	return f
}

func checkMarker(m *module, f *findings) {
	if m.marker == "" {
		f.prove("exports none of the functions %s, %s and %s, so it is not a Proxy-Wasm module", abi010, abi020, abi021)
	}
}

func checkImports(host Host, m *module, f *findings) {
	var missing, lateWASI []string
	for _, i := range m.imports {
		want, since := hostFunction(i, m.marker)
		switch {
		case since == 0:
			missing = append(missing, label(i.module, i.name))
		case i.sig != want:
			f.prove("imports %s as %s, but Envoy has %s", label(i.module, i.name), sigText(i.sig), sigText(want))
		case since > wasiOldest && (!host.Known || since > host.WASI):
			lateWASI = append(lateWASI, label(i.module, i.name))
		}
	}
	reportMissing(host, missing, lateWASI, f)
	if m.importsCut {
		f.doubt("imports more than %d functions, of which only the first were looked at", maxImports)
	}
	if len(m.tagImports) > 0 {
		f.prove("imports the tag %s, which ends Envoy", list(m.tagImports))
	}
	if len(m.otherImports) > 0 {
		f.prove("imports the global %s, and Envoy provides no globals", list(m.otherImports))
	}
}

// hostFunction returns the signature that Envoys have for an import and the size of the smallest WASI set with it, 0 if no Envoy has it.
func hostFunction(i importFunc, marker string) (sig string, since int) {
	if isWASI(i.module) {
		return wasiSince(i.name)
	}
	if i.module == "env" {
		if sig, ok := envSignature(i.name, marker); ok {
			return sig, wasiOldest
		}
	}
	return "", 0
}

// reportMissing says which functions host lacks: those that no Envoy has, and those of the WASI sets that came later.
func reportMissing(host Host, missing, late []string, f *findings) {
	switch {
	case host.Known && !host.Newer:
		all := slices.Concat(missing, late)
		if len(all) == 0 {
			return
		}
		remedy := ""
		if len(missing) == 0 {
			remedy = "; " + wasiRemedy(late)
		}
		f.prove("imports %s, which %s does not provide%s", list(all), host, remedy)
	case len(missing) > 0:
		f.doubt("imports %s, which no Envoy up to 1.%d provides", list(missing), measured)
	}
	if !host.Known {
		if late := slices.DeleteFunc(late, func(s string) bool { return !isLarge(s) }); len(late) > 0 {
			f.warn("imports %s; %s", list(late), wasiRemedy(late))
		}
	}
}

// wasiRemedy says which Envoys have all the given functions.
func wasiRemedy(labels []string) string {
	if slices.ContainsFunc(labels, isLarge) {
		return fmt.Sprintf("Envoy 1.%d and newer do", firstLarge)
	}
	return fmt.Sprintf("Envoy 1.%d and newer do", firstSmall)
}

func isLarge(label string) bool {
	_, name, _ := strings.Cut(label, ".")
	_, since := wasiSince(name)
	return since == wasiLarge
}

// list joins names for a reason, a few of them.
func list(names []string) string {
	if more := len(names) - few; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), more)
	}
	if last := len(names) - 1; last > 0 {
		return strings.Join(names[:last], ", ") + " and " + names[last]
	}
	return strings.Join(names, "")
}

func checkMemory(m *module, f *findings) {
	for i, l := range m.memories {
		if l.min > maxPages {
			f.prove("memory %d needs %d pages; Envoy allows %d", i, l.min, maxPages)
		}
		if l.imported && l.shared {
			f.prove("imports a shared memory, which Envoy does not provide")
		}
	}
	// The memory that host functions see is an exported or an imported one.
	seen := slices.Clone(m.exportedMemory)
	for i, l := range m.memories {
		if l.imported && !slices.Contains(seen, uint32(i)) {
			seen = append(seen, uint32(i))
		}
	}
	switch {
	case len(seen) > 1:
		f.doubt("exports or imports several memories; Envoy uses one of them for everything")
	case len(seen) == 1:
	default:
		if at := slices.IndexFunc(m.imports, touchesMemory); at >= 0 {
			f.prove("neither exports nor imports a memory; Envoy dies when %s is called", label(m.imports[at].module, m.imports[at].name))
		} else {
			f.warn("neither exports nor imports a memory")
		}
	}
}

func checkExports(host Host, m *module, f *findings) {
	allocate := exportMalloc
	if _, ok := m.exports[exportMalloc]; !ok {
		allocate = exportAllocate
	}
	if _, ok := m.exports[allocate]; !ok {
		f.prove("exports neither %s nor %s, which Envoy needs to pass data", exportMalloc, exportAllocate)
	}
	want := map[string]string{allocate: "i>i"}
	if _, ok := m.exports[exportInitialize]; ok {
		want[exportInitialize] = ">"
		want[exportMain] = "ii>i"
		if host.WASI == wasiLarge { // the same releases that have the larger set look for it
			want[exportMainVoid] = ">i"
		}
	} else {
		want[exportStart] = ">"
	}
	for name := range m.exports {
		if sig, ok := callbackSignature(name, m.marker); ok {
			want[name] = sig
		}
	}
	for _, name := range sortedKeys(want) {
		index, ok := m.exports[name]
		if sig, known := m.signature(index); ok && known && sig != want[name] {
			f.prove("exports %s as %s, but Envoy calls %s", name, sigText(sig), sigText(want[name]))
		}
	}
	if host.Known && m.marker != "" && !hasStreamCallback(m) {
		f.warn("exports no callback for requests, responses or connections")
	}
}

// hasStreamCallback tells whether the module can act on traffic at all. Loggers and services need none.
func hasStreamCallback(m *module) bool {
	for name := range m.exports {
		for _, prefix := range []string{"proxy_on_re", "proxy_on_new", "proxy_on_down", "proxy_on_up", "proxy_on_log", "proxy_on_tick"} {
			if strings.HasPrefix(name, prefix) {
				return true
			}
		}
	}
	return false
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
