package lease

import (
	"syscall"
	"time"
	"unsafe"
)

const (
	clockMonotonic = 1
	clockBoottime  = 7
)

// machineSlept is how long this machine has been suspended since it was booted:
// CLOCK_BOOTTIME counts that time and CLOCK_MONOTONIC does not.
func machineSlept() time.Duration {
	// The two readings are apart by the time between the calls; the smallest of a
	// few is the one that no preemption got into.
	least := time.Duration(-1)
	for range 3 {
		mono, ok1 := readClock(clockMonotonic)
		boot, ok2 := readClock(clockBoottime)
		if !ok1 || !ok2 {
			return 0
		}
		if d := boot - mono; least < 0 || d < least {
			least = d
		}
	}
	return least
}

func readClock(id uintptr) (time.Duration, bool) {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano()), errno == 0
}
