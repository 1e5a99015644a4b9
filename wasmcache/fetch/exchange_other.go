//go:build !linux && !darwin

package fetch

import "errors"

// exchange swaps two directories in one step, where the system can.
func exchange(string, string) error { return errors.ErrUnsupported }
