package standalone

import (
	"testing"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// A plugin that heals by itself has no second answer: its problem ends when it is told to be live, until the file changes.
func TestProblemEndsWhenAnExtensionIsLive(t *testing.T) {
	s, err := New(Config{Dir: "/etc/edge"})
	if err != nil {
		t.Fatal(err)
	}
	url := "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
	reject := func() {
		s.answer(url, []string{"waf"}, &rpcstatus.Status{Message: "the previous version was kept: 404"})
	}
	want := func(when string, n int) {
		t.Helper()
		if got := s.Problems(); len(got) != n {
			t.Errorf("%s: problems %v, want %d", when, got, n)
		}
	}
	s.put(t, state(t, extensions, "waf=a", "other=a"))
	reject()
	want("rejected", 1)
	s.ExtensionLive("other")
	want("another one is live", 1)
	s.ExtensionLive("waf")
	want("live", 0)
	reject()
	want("the same rejection comes late", 0)
	s.put(t, state(t, extensions, "waf=b", "other=a"))
	reject()
	want("the next edit is rejected", 1)
	s.put(t, state(t, extensions, "waf=a", "other=a"))
	reject()
	want("and so is the first text now", 1)
}
