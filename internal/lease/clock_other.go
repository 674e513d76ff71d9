//go:build !linux

package lease

import "time"

// machineSlept knows no way to ask this system.
func machineSlept() time.Duration { return 0 }
