package standalone

import (
	"slices"
	"strings"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/gateway-agent/gateway-agent/internal/envoytext"
)

// rejection is what Envoy said of a resource it did not take.
type rejection struct {
	kind kind
	name string // "" when its text names none
}

// maxReason bounds what is kept of Envoy's text, in bytes.
const maxReason = 1000

// answer takes Envoy's answer to a response: names are those in it, none for all of the kind.
func (s *Source) answer(typeURL string, names []string, detail *rpcstatus.Status) {
	k := kindOfURL(typeURL)
	s.mu.Lock()
	if len(names) == 0 {
		for name := range s.target[k] {
			names = append(names, name)
		}
	}
	before := len(s.rejected)
	for r := range s.rejected {
		if r.kind == k && (r.name == "" || slices.Contains(names, r.name)) && detail == nil {
			delete(s.rejected, r)
		}
	}
	var fresh []Problem
	if detail != nil {
		fresh = s.rejectLocked(k, names, detail.GetMessage())
	}
	cleared := before > 0 && len(s.rejected) == 0
	s.mu.Unlock()
	for _, p := range fresh {
		s.cfg.Log.Error("envoy rejected the configuration", "type_url", typeURL, "resource", p.Resource, "file", p.File, "line", p.Line, "err", p.Reason)
	}
	if cleared {
		s.cfg.Log.Info("envoy accepted what it had rejected", "type_url", typeURL)
	}
}

// ExtensionLive tells that Envoy runs the extension config as it is written now. It may have been rejected before: a plugin whose
// module could not be had heals without another answer, since xDS has no second one for the same response.
func (s *Source) ExtensionLive(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.healed[name] = s.target[extensions][name].sum
	delete(s.rejected, rejection{extensions, name})
}

// rejectLocked records the problems and returns those that are new.
func (s *Source) rejectLocked(k kind, names []string, text string) []Problem {
	var fresh []Problem
	for name, reason := range attribute(text, names) {
		if sum := s.target[k][name].sum; k == extensions && sum != "" && s.healed[name] == sum {
			continue // the rejection was on its way when the plugin healed
		}
		if k != extensions { // about those the agent itself answers, and says what Envoy said
			reason = "Envoy rejected it: " + reason
		}
		p := Problem{Resource: string(k), Reason: reason}
		if e, ok := s.target[k][name]; ok {
			p.Resource, p.File, p.Line = string(k)+" "+name, e.file, e.line
		}
		id := rejection{k, name}
		if old, ok := s.rejected[id]; ok && old.key() == p {
			continue
		}
		p.Since = s.now()
		s.rejected[id] = p
		fresh = append(fresh, p)
	}
	return fresh
}

// attribute divides Envoy's text among the resources it names: "Error adding/updating listener(s) a: …\nb: …". What
// names none stands under "", or under the only resource there was.
func attribute(text string, names []string) map[string]string {
	text = strings.TrimSpace(text)
	if _, rest, ok := strings.Cut(text, "(s) "); ok && strings.HasPrefix(text, "Error adding/updating") {
		text = rest
	}
	starts := map[int]string{}
	for _, name := range names {
		if i := mention(text, name); i >= 0 && len(starts[i]) < len(name) {
			starts[i] = name
		}
	}
	out := map[string]string{}
	for i, name := range starts {
		end := len(text)
		for j := range starts {
			if j > i && j < end {
				end = j
			}
		}
		out[name] = envoytext.Public(strings.Trim(text[i+len(name)+1:end], " \n,"), maxReason)
	}
	if len(out) == 0 {
		name := ""
		if len(names) == 1 {
			name = names[0]
		}
		out[name] = envoytext.Public(text, maxReason)
	}
	return out
}

// mention finds "name:" at the start of the text, of a line or of a part.
func mention(text, name string) int {
	for from := 0; ; {
		i := strings.Index(text[from:], name+":")
		if i < 0 {
			return -1
		}
		i += from
		if i == 0 || text[i-1] == '\n' || strings.HasSuffix(text[:i], ", ") {
			return i
		}
		from = i + 1
	}
}
