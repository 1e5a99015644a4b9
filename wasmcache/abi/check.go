package abi

import "context"

// Check judges the module in the file at path for host. It never panics, whatever the file holds.
func Check(ctx context.Context, host Host, path string) Verdict {
	_, _, _ = ctx, host, path
	return Verdict{Outcome: CannotSay, Reason: "not checked"}
}
