package history

import (
	"syscall"
	"unsafe"
)

// machineTime reads CLOCK_MONOTONIC, which is also what Go's time.Now reads.
func machineTime() int64 {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		panic(errno)
	}
	return ts.Nano()
}
