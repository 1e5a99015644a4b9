package main

import (
	"fmt"
	"syscall"
)

// raiseFileLimit lets Envoy have as many connections as the system allows. Go raises the limit for itself alone: what it starts gets the
// one that was there before, often 1024, unless a program raises it as this does.
func raiseFileLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise the limit of open files to %d: %w", limit.Max, err)
	}
	return nil
}
