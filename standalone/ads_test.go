package standalone

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestRejectedIsNotSentAgain: what Envoy rejected waits for the next edit.
func TestRejectedIsNotSentAgain(t *testing.T) {
	bothProtocols(t, func(t *testing.T, s *Source, c *client) {
		s.put(t, together(state(t, listeners, "l1=a", "l2=a"), state(t, clusters, "c1=a")))
		c.subscribe(clusters)
		c.want("clusters", "cluster: c1")
		c.ack(clusters)
		c.subscribe(listeners)
		c.want("listeners", "listener: l1 l2")
		c.ack(listeners)
		c.want("after the ACK")

		s.put(t, together(state(t, listeners, "l1=b", "l2=a"), state(t, clusters, "c1=a")))
		first := c.take()
		c.nack(listeners, "Error adding/updating listener(s) l1: cannot bind '0.0.0.0:80': Address already in use\n")
		time.Sleep(time.Hour)
		c.want("after the NACK")
		if len(first) != 1 {
			t.Errorf("responses to the edit: %q, want one", first)
		}
		want := "/etc/edge/a.yaml:1: listener l1: Envoy rejected it: cannot bind '0.0.0.0:80': Address already in use"
		problems := s.Problems()
		if len(problems) != 1 || problems[0].Error() != want {
			t.Fatalf("Problems() = %v, want %s", problems, want)
		}
		if got := time.Since(problems[0].Since); got.Round(time.Second) != time.Hour {
			t.Errorf("the problem is %v old, want 1h", got)
		}

		s.put(t, together(state(t, listeners, "l1=b", "l2=b"), state(t, clusters, "c1=a")))
		if p := s.Problems(); len(p) != 1 {
			t.Errorf("Problems() after another listener was edited = %v, want the one of l1", p)
		}
		s.put(t, together(state(t, listeners, "l1=c", "l2=b"), state(t, clusters, "c1=a")))
		if p := s.Problems(); len(p) != 0 {
			t.Errorf("Problems() after l1 was edited = %v, want none", p)
		}
		if got := c.take(); len(got) == 0 {
			t.Error("nothing was sent after the edit")
		}
		c.ack(listeners)
		time.Sleep(time.Hour)
		if p := s.Problems(); len(p) != 0 {
			t.Errorf("Problems() at the end = %v, want none", p)
		}
	})
}

// TestAcceptedLater: a problem goes away when Envoy takes the same resource after all.
func TestAcceptedLater(t *testing.T) {
	bothProtocols(t, func(t *testing.T, s *Source, c *client) {
		s.put(t, state(t, listeners, "l1=a"))
		c.subscribe(listeners)
		c.want("listeners", "listener: l1")
		c.nack(listeners, "some text that names nothing")
		synctest.Wait()
		want := "/etc/edge/a.yaml:1: listener l1: Envoy rejected it: some text that names nothing"
		if p := s.Problems(); len(p) != 1 || p[0].Error() != want {
			t.Fatalf("Problems() = %v, want %s", p, want)
		}
		c.send(typeURLs[listeners], c.nonces[typeURLs[listeners]], nil, "")
		synctest.Wait()
		if p := s.Problems(); len(p) != 0 {
			t.Errorf("Problems() after the ACK = %v, want none", p)
		}
	})
}

// TestUnreferenced: what nobody asks for holds up nothing, and names may be asked for one by one.
func TestUnreferenced(t *testing.T) {
	bothProtocols(t, func(t *testing.T, s *Source, c *client) {
		s.put(t, together(state(t, routes, "r1=a", "r2=a", "r3=a"), state(t, extensions, "e1=a", "e2=a")))
		c.subscribe(routes, "r1")
		c.want("first route", "route configuration: r1")
		c.ack(routes)
		c.subscribe(extensions, "e1")
		c.want("first extension", "extension config: e1")
		c.ack(extensions, "e2")
		got := c.take()
		if len(got) != 1 || !strings.HasSuffix(got[0], "e2") {
			t.Errorf("second extension: got %q, want one response with e2", got)
		}
		c.nack(extensions, "e2: no")
		c.want("after the NACK")
		if p := s.Problems(); len(p) != 1 || p[0].Resource != "extension config e2" {
			t.Errorf("Problems() = %v, want one of e2", p)
		}
		s.put(t, together(state(t, routes, "r1=a", "r2=b", "r3=b"), state(t, extensions, "e1=a", "e2=a")))
		for _, text := range c.take() { // state of the world repeats r1
			if text != "route configuration: r1" {
				t.Errorf("after an edit of other routes: got %q", text)
			}
		}
	})
}

// TestNothingToServe: an empty type is answered too, or Envoy would wait for it.
func TestNothingToServe(t *testing.T) {
	bothProtocols(t, func(t *testing.T, s *Source, c *client) {
		s.put(t, state(t, listeners, "l1=a"))
		c.subscribe(clusters)
		c.want("clusters", "cluster: ")
	})
}

// TestOrder: clusters come before what names them and go after it.
func TestOrder(t *testing.T) {
	bothProtocols(t, func(t *testing.T, s *Source, c *client) {
		s.put(t, together(state(t, listeners, "l1=old"), state(t, clusters, "old=a")))
		c.subscribe(clusters)
		c.want("clusters", "cluster: old")
		c.ack(clusters)
		c.subscribe(listeners)
		c.want("listeners", "listener: l1")
		c.ack(listeners)
		synctest.Wait()

		next := together(state(t, listeners, "l1=new"), state(t, clusters, "new=a"))
		s.accept(newConfig(s.cfg.Dir), next, contents{})
		done := make(chan bool)
		start := time.Now()
		go func() {
			removed, err := s.publish(t.Context(), next)
			if err != nil {
				t.Error(err)
			}
			done <- removed
		}()
		got := c.take()
		if len(got) != 1 || !strings.HasPrefix(got[0], "cluster: new") {
			t.Errorf("first stage: got %q, want the clusters only", got)
		}
		time.Sleep(100 * time.Millisecond)
		c.want("before the clusters are answered")
		c.ack(clusters)
		c.want("second stage", "listener: l1")
		if removed := <-done; !removed || time.Since(start) != 100*time.Millisecond {
			t.Errorf("publish: removed %v after %v, want true at once after the answer", removed, time.Since(start))
		}
		if err := s.set(t.Context(), s.accepted()); err != nil {
			t.Fatal(err)
		}
		if got := c.take(); len(got) != 1 || strings.Contains(got[0], " old") && !strings.Contains(got[0], "-old") {
			t.Errorf("last stage: got %q, want the clusters without the old one", got)
		}
	})
}

// TestSilentEnvoy: an Envoy that does not answer holds an edit up for a bounded time only.
func TestSilentEnvoy(t *testing.T) {
	bothProtocols(t, func(t *testing.T, s *Source, c *client) {
		s.put(t, together(state(t, listeners, "l1=old"), state(t, clusters, "old=a")))
		c.subscribe(clusters)
		c.want("clusters", "cluster: old")
		start := time.Now()
		if _, err := s.publish(t.Context(), together(state(t, listeners, "l1=new"), state(t, clusters, "new=a"))); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != stageWithin {
			t.Errorf("publish took %v, want %v", took, stageWithin)
		}
	})
}

func TestAttribute(t *testing.T) {
	names := []string{"a", "b", "a.b", "listener_0.0.0.0:80"}
	for text, want := range map[string]map[string]string{
		"Error adding/updating listener(s) a: cannot bind\n":              {"a": "cannot bind"},
		"Error adding/updating listener(s) a: x, y\nb: z: a: w\n":         {"a": "x, y", "b": "z: a: w"},
		"Error adding/updating cluster(s) b: one, a.b: two":               {"b": "one", "a.b": "two"},
		"Error adding/updating listener(s) listener_0.0.0.0:80: in use\n": {"listener_0.0.0.0:80": "in use"},
		"Only unique names": {"": "Only unique names"},
		"xa: no":            {"": "xa: no"},
		"":                  {"": "rejected without a reason that can be shown"},
	} {
		if diff := cmp.Diff(want, attribute(text, names)); diff != "" {
			t.Errorf("attribute(%q) differs (-want +got):\n%s", text, diff)
		}
	}
	if got := attribute(strings.Repeat("ä", 10000), []string{"x"})["x"]; len(got) > maxReason+10 {
		t.Errorf("a long text is kept with %d bytes", len(got))
	}
}
