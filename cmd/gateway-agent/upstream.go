package main

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
)

// reconnect is how a lost control plane is dialled again: quick at first, since Envoy waits, and never slower than 5 s.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.5, MaxDelay: 5 * time.Second},
	MinConnectTimeout: 5 * time.Second,
}

// alive finds a dead connection within 40 s; istiod allows pings every 15 s.
var alive = keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}

// envoyPings allows what the bootstrap tells Envoy to send; gRPC's default would answer with GOAWAY.
var envoyPings = keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}
