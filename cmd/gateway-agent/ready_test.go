package main

import (
	"testing"

	"github.com/gateway-agent/gateway-agent/status"
)

func TestAtFirst(t *testing.T) {
	g, missing := &gateway{}, "it is not there"
	check := func() status.Check { return g.atFirst("x", func() string { return missing }) }
	if got, want := check(), (status.Check{Name: "x", Reason: "it is not there"}); got != want {
		t.Errorf("before: %+v, want %+v", got, want)
	}
	missing = ""
	if got := check(); !got.OK {
		t.Errorf("there: %+v, want it passed", got)
	}
	g.readyAfter.Store(1)
	missing = "it has gone"
	if got := check(); !got.OK {
		t.Errorf("gone after the gateway was ready: %+v, want it passed", got)
	}
}
