package relay

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// frame is one gRPC message as bytes. Whoever holds it owns one reference to its buffers.
type frame struct{ data mem.BufferSlice }

// frameOf makes a frame of bytes that nobody changes any more.
func frameOf(parts ...[]byte) frame {
	var f frame
	for _, p := range parts {
		f.data = append(f.data, mem.SliceBuffer(p))
	}
	return f
}

// codec hands frames over as they are and treats every other message as ordinary proto, so that other services can share the server.
type codec struct{ messages encoding.CodecV2 }

func newCodec() codec { return codec{messages: encoding.GetCodecV2(proto.Name)} }

// Marshal implements encoding.CodecV2. gRPC frees what it returns, the caller keeps its own reference.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		f.data.Ref()
		return f.data, nil
	}
	return c.messages.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		data.Ref()
		f.data = data
		return nil
	}
	return c.messages.Unmarshal(data, v)
}

// Name implements encoding.CodecV2.
func (c codec) Name() string { return proto.Name }
