package istio

import (
	_ "embed"
	"slices"
	"strings"
)

// otherPrograms are the variables that pilot-agent registers because it shares code with istiod and istio-iptables. It does nothing with
// them at a gateway.
//
//go:embed others.txt
var otherPrograms string

// lookupOther finds a variable of Istio's other programs.
func lookupOther(name string) (Variable, bool) {
	if !slices.Contains(strings.Fields(otherPrograms), name) {
		return Variable{}, false
	}
	return Variable{Name: name, Ignored: true, Meaning: "it is a setting of istiod's or of istio-iptables', and pilot-agent does nothing with it at a gateway either"}, true
}
