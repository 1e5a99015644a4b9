//go:build wasip1

// Command readfile is a Proxy-Wasm plugin that uses os.ReadFile, and so imports WASI functions that Envoy has only since 1.39. It reads the file
// that its configuration names (Envoy has none) and goes on without it.
//
// Build it with GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared.
package main

import (
	"os"
	"unsafe"
)

func main() {}

const bufferPluginConfiguration = 7

//go:wasmimport env proxy_get_buffer_bytes
func getBufferBytes(buffer, start, length uint32, data, size unsafe.Pointer) uint32

//go:wasmexport proxy_abi_version_0_2_1
func abiVersion() {}

// held keeps what was given to Envoy from being collected.
var held = map[uintptr][]byte{}

//go:wasmexport proxy_on_memory_allocate
func allocate(size uint32) unsafe.Pointer {
	b := make([]byte, max(size, 1))
	p := unsafe.Pointer(unsafe.SliceData(b))
	held[uintptr(p)] = b
	return p
}

//go:wasmexport proxy_on_configure
func onConfigure(_, size uint32) uint32 {
	var data uintptr
	var n uint32
	if size > 0 && getBufferBytes(bufferPluginConfiguration, 0, size, unsafe.Pointer(&data), unsafe.Pointer(&n)) == 0 {
		if b, err := os.ReadFile(string(held[data][:n])); err == nil {
			println("read", len(b), "bytes")
		}
	}
	return 1
}

//go:wasmexport proxy_on_request_headers
func onRequestHeaders(_, _, _ uint32) uint32 { return 0 }
