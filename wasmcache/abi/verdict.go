// Package abi judges Proxy-Wasm modules before Envoy sees them: what would not load there, and what would end or hang it.
//
// Check reads a module in two steps. Our own section reader streams over the file and needs no memory for its code: imports, exports, memories
// and the start section are compared with what the Envoy in use offers. Then wazero's interpreter validates the code.
// A module that Envoy would accept and survive is never called broken: whatever is not proof ends as CannotSay.
package abi

// CheckerVersion changes when Check may answer differently for the same bytes and host; kept verdicts of other versions are void.
const CheckerVersion = "2"

// Outcome says how a check ended.
type Outcome int

// The outcomes. The zero Verdict vouches for nothing.
const (
	// CannotSay: neither good nor proven broken.
	CannotSay Outcome = iota
	// Good: everything a check without running the module can see is in order.
	Good
	// Broken: proof that this Envoy rejects the module, or dies of it.
	Broken
)

// String returns the outcome as it appears in status and logs.
func (o Outcome) String() string {
	switch o {
	case Good:
		return "good"
	case Broken:
		return "broken"
	default:
		return "cannot say"
	}
}

// Verdict is what Check found out about one module for one host.
type Verdict struct {
	// Outcome sums it up.
	Outcome Outcome
	// Reason names the import, the export or the limit. Empty if Good.
	Reason string
	// Warnings are things worth knowing that do not change the outcome.
	Warnings []string
}
