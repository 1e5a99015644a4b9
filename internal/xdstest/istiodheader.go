package xdstest

import (
	"context"
	"slices"

	"google.golang.org/grpc/metadata"
)

// checkHeader fails the test when a stream lacks metadata that it must have.
func (c *Istiod) checkHeader(ctx context.Context) {
	md, _ := metadata.FromIncomingContext(ctx)
	for name, want := range c.config.Header {
		if got := md.Get(name); !slices.Equal(got, []string{want}) {
			c.t.Errorf("istiod: header %s is %q, want %q", name, got, want)
		}
	}
}
