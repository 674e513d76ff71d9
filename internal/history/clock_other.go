//go:build !linux

package history

import "time"

// machineTime is the wall clock: nothing better is common to all processes.
func machineTime() int64 { return time.Now().UnixNano() }
