package relay

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// nopConn is an upstream that is never used.
type nopConn struct{ grpc.ClientConnInterface }

func protoName(s string) protoreflect.Name { return protoreflect.Name(s) }

func protoString(s string) protoreflect.Value { return protoreflect.ValueOfString(s) }
