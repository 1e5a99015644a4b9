package relay

import "google.golang.org/grpc"

// nopConn is an upstream that is never used.
type nopConn struct{ grpc.ClientConnInterface }
