package wasmtest

import (
	"encoding/binary"
	"math/rand/v2"
)

// Where SmallHello keeps what.
const (
	smallName    = 0      // "x-hello"
	smallVersion = 16     // "x-hello-version"
	smallText    = 64     // the version
	smallData    = 1024   // where the host puts a configuration's address and size
	smallNext    = 1032   // address of what is allocated next
	smallStreams = 16384  // root context of each stream
	smallRoots   = 65536  // address and size of what x-hello says, for each root context
	smallHeap    = 131072 // from here on
	smallMask    = 8191   // contexts that far apart share a place
)

var (
	equal     = []byte{0x46}
	add       = []byte{0x6a}
	and       = []byte{0x71}
	shiftLeft = []byte{0x74}
	ifThen    = []byte{0x04, 0x40}
	giveBack  = []byte{0x0f}
)

func local(n uint32) []byte      { return append([]byte{0x20}, U32(n)...) }
func load(offset uint32) []byte  { return append([]byte{0x28, 0x02}, U32(offset)...) }
func store(offset uint32) []byte { return append([]byte{0x36, 0x02}, U32(offset)...) }

// SmallHello is a module that does with a plain configuration as testdata/plugins/hello does, and refuses one that starts with a brace. Envoy
// compiles it in no time: hello, with Go's runtime, costs it two seconds. Like a real one it is longer than what else a registry sends, whether
// compressed or not.
func SmallHello(version string) []byte {
	var get, replace uint32
	e := &Encoder{}
	get = e.Import("env", "proxy_get_buffer_bytes", "iiiii>i")
	replace = e.Import("env", "proxy_replace_header_map_value", "iiiii>i")
	size, zero := I32Const(int32(len(version))), I32Const(0)
	e.ExportFunc("proxy_abi_version_0_2_1", ">")
	e.ExportFunc("proxy_on_memory_allocate", "i>i",
		zero, load(smallNext), // stays on the stack
		zero, zero, load(smallNext), local(0), add, I32Const(7), add, I32Const(-8), and, store(smallNext))
	e.ExportFunc("proxy_on_context_create", "ii>", place(local(0), 2), local(1), store(smallStreams))
	slot := place(local(0), 3)
	e.ExportFunc("proxy_on_configure", "ii>i",
		local(1), zero, equal, ifThen,
		slot, I32Const(smallText), store(smallRoots), slot, size, store(smallRoots+4), I32Const(1), giveBack, End,
		I32Const(7), zero, local(1), I32Const(smallData), I32Const(smallData+4), Call(get), ifThen, zero, giveBack, End,
		zero, load(smallData), []byte{0x2d, 0, 0}, I32Const('{'), equal, ifThen, zero, giveBack, End,
		slot, zero, load(smallData), store(smallRoots), slot, zero, load(smallData+4), store(smallRoots+4), I32Const(1))
	said := place(Code(place(local(0), 2), load(smallStreams)), 3)
	e.ExportFunc("proxy_on_response_headers", "iii>i",
		I32Const(2), I32Const(smallName), I32Const(7), said, load(smallRoots), said, load(smallRoots+4), Call(replace), Drop,
		I32Const(2), I32Const(smallVersion), I32Const(15), I32Const(smallText), size, Call(replace), Drop, zero)
	e.Export("memory", KindMemory, e.Memory(32))
	e.Data(smallName, "x-hello")
	e.Data(smallVersion, "x-hello-version")
	e.Data(smallText, version)
	e.Data(smallNext, string(binary.LittleEndian.AppendUint32(nil, smallHeap)))
	noise := make([]byte, 16<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	e.Custom("noise", noise)
	return e.Bytes()
}

// place is code for the offset of a context's entry, of 1<<shift bytes, in a table.
func place(context []byte, shift int32) []byte {
	return Code(context, I32Const(smallMask), and, I32Const(shift), shiftLeft)
}
