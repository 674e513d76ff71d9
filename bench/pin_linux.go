package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Pin binds this process to the first core that it may use, and the server to the
// same core (cores == 1) or to the second one (cores == 2), for the rest of the
// benchmark. The client runs with GOMAXPROCS=1.
func (l *Lab) Pin(tb testing.TB, cores int) {
	tb.Helper()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		tb.Fatalf("affinity: %v", err)
	}
	var allowed []int
	for cpu := range len(before) * strconv.IntSize {
		if before.IsSet(cpu) {
			allowed = append(allowed, cpu)
		}
	}
	if len(allowed) < cores {
		tb.Skipf("%d cores are asked for, this process may use %d", cores, len(allowed))
	}
	if err := pin(os.Getpid(), one(allowed[0])); err != nil {
		tb.Fatalf("pin the client: %v", err)
	}
	procs := runtime.GOMAXPROCS(1)
	tb.Cleanup(func() {
		_ = pin(os.Getpid(), before)
		runtime.GOMAXPROCS(procs)
	})
	if err := pin(l.server.PID(), one(allowed[cores-1])); err != nil {
		tb.Fatalf("pin the server: %v", err)
	}
}

// PinAsThis binds another process to the cores that this one is bound to.
func (l *Lab) PinAsThis(tb testing.TB, pid int) {
	tb.Helper()
	var mine unix.CPUSet
	err := unix.SchedGetaffinity(0, &mine)
	if err == nil {
		err = pin(pid, mine)
	}
	if err != nil {
		tb.Fatalf("pin process %d: %v", pid, err)
	}
}

func one(cpu int) (set unix.CPUSet) {
	set.Set(cpu)
	return set
}

// pin binds all threads of a process; those to come inherit it. A thread may be
// started by one that was not bound yet, so it looks until it finds no new one.
func pin(pid int, set unix.CPUSet) error {
	bound := map[int]bool{}
	for {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil {
			return err
		}
		found := false
		for _, task := range tasks {
			tid, err := strconv.Atoi(filepath.Base(task))
			if err != nil || bound[tid] {
				continue
			}
			bound[tid], found = true, true
			if err := unix.SchedSetaffinity(tid, &set); err != nil && err != unix.ESRCH { // ended meanwhile
				return err
			}
		}
		if !found {
			return nil
		}
	}
}
