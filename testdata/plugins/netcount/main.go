//go:build wasip1

// Command netcount is a Proxy-Wasm network plugin in plain Go, without an SDK. It counts connections and shows it: the first data from a
// client gets "<configuration> <number>: " put before it, so that an echo behind it answers with the count. Without a configuration the
// word is the version. The count is that of one of Envoy's workers. The configuration "close" closes every new connection instead.
//
// Build it with GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared.
package main

import (
	"strconv"
	"unsafe"
)

var version = "dev"

var (
	word        string
	connections int
	// pending are the connections whose first data has not come.
	pending = map[uint32]int{}
)

func main() {}

// Envoy's numbers.
const (
	bufferDownstreamData      = 2
	bufferPluginConfiguration = 7
	streamDownstream          = 2
	actionContinue            = 0
	actionPause               = 1
)

//go:wasmimport env proxy_get_buffer_bytes
func getBufferBytes(buffer, start, length uint32, data, size unsafe.Pointer) uint32

//go:wasmimport env proxy_set_buffer_bytes
func setBufferBytes(buffer, start, length uint32, data unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_close_stream
func closeStream(stream uint32) uint32

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

//go:wasmexport proxy_on_configure
func onConfigure(_, size uint32) uint32 {
	word = version
	var data uintptr
	var n uint32
	if size > 0 && getBufferBytes(bufferPluginConfiguration, 0, size, unsafe.Pointer(&data), unsafe.Pointer(&n)) == 0 {
		word = string(held[data][:n])
		delete(held, data)
	}
	return 1
}

//go:wasmexport proxy_on_new_connection
func onNewConnection(id uint32) uint32 {
	connections++
	if word == "close" {
		closeStream(streamDownstream)
		return actionPause
	}
	pending[id] = connections
	return actionContinue
}

//go:wasmexport proxy_on_downstream_data
func onDownstreamData(id, _, _ uint32) uint32 {
	if n, ok := pending[id]; ok {
		delete(pending, id)
		text := word + " " + strconv.Itoa(n) + ": "
		setBufferBytes(bufferDownstreamData, 0, 0, unsafe.Pointer(unsafe.StringData(text)), uint32(len(text)))
	}
	return actionContinue
}

//go:wasmexport proxy_on_delete
func onDelete(id uint32) { delete(pending, id) }
