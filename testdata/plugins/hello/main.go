//go:build wasip1

// Command hello is a Proxy-Wasm HTTP plugin in plain Go, without an SDK. It sets two response headers:
//
//	x-hello          the plugin configuration, or the version if there is none
//	x-hello-version  the version, set at link time with -X main.version=…
//
// The configuration is plain text, or a JSON object with any of
//
//	"value"           what x-hello says
//	"start_delay_ms"  proxy_on_configure is busy for that long, once per configuration in a process: in Envoy's first virtual machine, on
//	                  its main thread, as the compilation of a large module is. The workers' own are quick
//	"fail_configure"  true: proxy_on_configure refuses the configuration
//
// Build it with GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared.
package main

import "unsafe"

var version = "dev"

// values is what x-hello says for each root context: Envoy puts all plugins of the same code into one virtual machine.
var values = map[uint32]string{}

// roots has the root context of each stream.
var roots = map[uint32]uint32{}

func main() {}

// Envoy's numbers for a buffer, a header map and the answers of a callback.
const (
	bufferPluginConfiguration = 7
	mapResponseHeaders        = 2
	actionContinue            = 0
)

//go:wasmimport env proxy_get_buffer_bytes
func getBufferBytes(buffer, start, length uint32, data, size unsafe.Pointer) uint32

//go:wasmimport env proxy_replace_header_map_value
func replaceHeader(headers uint32, key unsafe.Pointer, keySize uint32, value unsafe.Pointer, valueSize uint32) uint32

//go:wasmimport env proxy_get_shared_data
func getSharedData(key unsafe.Pointer, keySize uint32, data, size, cas unsafe.Pointer) uint32

//go:wasmimport env proxy_set_shared_data
func setSharedData(key unsafe.Pointer, keySize uint32, value unsafe.Pointer, valueSize uint32, cas uint32) uint32

// The package time would make the module a sixth larger.
//
//go:wasmimport wasi_snapshot_preview1 clock_time_get
func clockTime(clock uint32, precision uint64, nanoseconds unsafe.Pointer) uint32

//go:wasmexport proxy_abi_version_0_2_1
func abiVersion() {}

// held keeps what was given to Envoy from being collected until it has come back.
var held = map[uintptr][]byte{}

//go:wasmexport proxy_on_memory_allocate
func allocate(size uint32) unsafe.Pointer {
	b := make([]byte, max(size, 1))
	p := unsafe.Pointer(unsafe.SliceData(b))
	held[uintptr(p)] = b
	return p
}

//go:wasmexport proxy_on_context_create
func onContextCreate(context, root uint32) {
	if root != 0 {
		roots[context] = root
	}
}

//go:wasmexport proxy_on_delete
func onDelete(context uint32) { delete(roots, context) }

//go:wasmexport proxy_on_configure
func onConfigure(root, size uint32) uint32 {
	text := readConfiguration(size)
	value := text
	if object, ok := parseObject(text); ok {
		value = object["value"]
		if delay := object["start_delay_ms"]; delay != "" && firstTime(text) {
			busy(delay)
		}
		if object["fail_configure"] == "true" {
			return 0
		}
	}
	if value == "" {
		value = version
	}
	values[root] = value
	return 1
}

// firstTime tells whether no virtual machine of this process has asked for the key before.
func firstTime(key string) bool {
	var data, size, cas uint32
	k, n := unsafe.Pointer(unsafe.StringData(key)), uint32(len(key))
	if getSharedData(k, n, unsafe.Pointer(&data), unsafe.Pointer(&size), unsafe.Pointer(&cas)) == 0 {
		return false
	}
	return setSharedData(k, n, k, n, 0) == 0
}

//go:wasmexport proxy_on_response_headers
func onResponseHeaders(context, _, _ uint32) uint32 {
	setHeader("x-hello", values[roots[context]])
	setHeader("x-hello-version", version)
	return actionContinue
}

func setHeader(key, value string) {
	replaceHeader(mapResponseHeaders, unsafe.Pointer(unsafe.StringData(key)), uint32(len(key)),
		unsafe.Pointer(unsafe.StringData(value)), uint32(len(value)))
}

func readConfiguration(size uint32) string {
	if size == 0 {
		return ""
	}
	var data uintptr
	var n uint32
	if getBufferBytes(bufferPluginConfiguration, 0, size, unsafe.Pointer(&data), unsafe.Pointer(&n)) != 0 {
		return ""
	}
	b := held[data]
	delete(held, data)
	return string(b[:n])
}

// busy spins for the given number of milliseconds: a sleep would not block Envoy.
func busy(milliseconds string) {
	n := 0
	for _, digit := range milliseconds {
		if digit < '0' || digit > '9' {
			return
		}
		n = n*10 + int(digit-'0')
	}
	for end := now() + uint64(n)*1_000_000; now() < end; {
	}
}

// now reads the monotonic clock in nanoseconds.
func now() (t uint64) {
	clockTime(1, 0, unsafe.Pointer(&t))
	return t
}
