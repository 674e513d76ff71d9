//go:build !linux

package redistest

import (
	"errors"
	"os"
	"os/exec"
	"sync/atomic"
)

// dieWithParent does nothing: only Linux has a parent-death signal.
func dieWithParent(*exec.Cmd) {}

// suspended cannot be asked for without /proc and trusts the signal.
func suspended(int) bool { return true }

// mapWord and loaded are for preloading libraries, which is done on Linux only.
func mapWord(*os.File) (word *atomic.Int64, unmap func(), err error) {
	return nil, nil, errors.ErrUnsupported
}

func loaded(int, string) error { return errors.ErrUnsupported }
