package redistest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
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
