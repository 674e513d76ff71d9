//go:build unix

package explore_test

import "syscall"

// The explorer computes for a minute, while tests of other packages go by the clock.
func init() { _ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, 10) }
