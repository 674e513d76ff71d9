//go:build !linux

package bench

import "time"

// cpuOf knows nothing outside Linux.
func cpuOf(int) (time.Duration, error) { return 0, nil }
