package redistest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// dieWithParent makes the kernel kill the process when this one ends, so that
// a test binary which crashes or is killed leaves nothing running.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// suspended reports whether every thread of the process is stopped. The state
// of the process alone is that of its first thread only.
func suspended(pid int) bool {
	tasks, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "stat"))
	if err != nil || len(tasks) == 0 {
		return false
	}
	for _, task := range tasks {
		stat, err := os.ReadFile(task)
		if err != nil {
			return false
		}
		// The name in parentheses may itself hold parentheses and spaces.
		after := stat[bytes.LastIndexByte(stat, ')')+1:]
		if len(after) < 2 || after[1] != 'T' {
			return false
		}
	}
	return true
}

// mapWord maps the first eight bytes of a file, so that they change at once for
// everybody who has them mapped. The mapping is not valid after unmap.
func mapWord(f *os.File) (word *atomic.Int64, unmap func(), err error) {
	b, err := syscall.Mmap(int(f.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	return (*atomic.Int64)(unsafe.Pointer(unsafe.SliceData(b))), func() { _ = syscall.Munmap(b) }, nil
}

// loaded returns nil if the process has the library in its memory.
func loaded(pid int, library string) error {
	maps, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "maps"))
	if err == nil && !bytes.Contains(maps, []byte(library)) {
		err = errors.New("the server did not load " + library + ": is it linked statically?")
	}
	return err
}
