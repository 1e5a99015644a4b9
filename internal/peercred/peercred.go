// Package peercred lets a gRPC server on a unix socket know the process behind each connection, and refuse those of other users.
package peercred

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Cred is who is on the other end of a unix socket. PID is 0 for a process that our PID namespace cannot see.
type Cred struct {
	PID      int
	UID, GID uint32
}

// AuthInfo is the peer's AuthInfo on such a connection.
type AuthInfo struct {
	credentials.CommonAuthInfo
	Cred Cred
}

// AuthType implements credentials.AuthInfo.
func (AuthInfo) AuthType() string { return "peercred" }

// creds implements credentials.TransportCredentials.
type creds struct{ allowed []uint32 }

// New returns credentials for a server on a unix socket. Peers of our own user, of root and of the given users are let in, others
// refused. Connections that are not unix sockets (tests) are let in and have no Cred.
func New(uids ...uint32) credentials.TransportCredentials {
	allowed := append([]uint32{0, uint32(os.Geteuid())}, uids...)
	slices.Sort(allowed)
	return &creds{allowed: slices.Compact(allowed)}
}

// FromContext tells who is behind the stream that ctx belongs to; false when that is not known.
func FromContext(ctx context.Context) (Cred, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Cred{}, false
	}
	info, ok := p.AuthInfo.(AuthInfo)
	return info.Cred, ok
}

// unknown is the AuthInfo of a connection that tells nothing.
type unknown struct{ credentials.CommonAuthInfo }

func (unknown) AuthType() string { return "insecure" }

// ServerHandshake reads the peer's credentials; nothing goes over the wire.
func (c *creds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return conn, unknown{credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}}, nil
	}
	cred, err := read(socket)
	if err != nil {
		return nil, nil, fmt.Errorf("read the credentials of the process behind %s: %w", conn.LocalAddr(), err)
	}
	if !slices.Contains(c.allowed, cred.UID) {
		return nil, nil, fmt.Errorf("process %d of user %d may not use %s, only users %v may: run it as one of them", cred.PID, cred.UID, conn.LocalAddr(), c.allowed)
	}
	return conn, AuthInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, Cred: cred}, nil
}

// ClientHandshake does nothing.
func (c *creds) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, unknown{credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}}, nil
}

func (c *creds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "peercred"}
}

func (c *creds) Clone() credentials.TransportCredentials { return &creds{allowed: c.allowed} }

// OverrideServerName is deprecated in gRPC and part of the interface.
func (c *creds) OverrideServerName(string) error { return nil }
