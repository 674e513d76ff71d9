package redistest

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// ErrNoCompiler is returned when there is no C compiler to build a Clock with,
// or one without the headers of the C library.
var ErrNoCompiler = errors.New("redistest: no C compiler: a clock that jumps needs one " +
	"(Debian and Ubuntu: apt-get install gcc libc6-dev)")

// shim is preloaded into the servers which have a Clock.
//
//go:embed shim/clock.c
var shim []byte

// Clock is the clock of one server or of several, which jumps on demand as that
// of a machine does when it is set. Only the time of day jumps: a server takes
// expiry times from it, and runs its own timers on a monotonic clock.
//
// With a jump a server may also take its replicas, or in a cluster the other
// nodes, for silent since long.
type Clock struct {
	library string
	file    string
	offset  *atomic.Int64
}

// NewClock builds a clock that servers are started with, for the time of a
// test. It works on Linux and for servers that are linked dynamically.
func NewClock(tb TB) (*Clock, error) {
	tb.Helper()
	dir := tb.TempDir()
	c := &Clock{library: filepath.Join(dir, "clock.so"), file: filepath.Join(dir, "offset")}
	if err := buildShim(dir, c.library); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(c.file, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err = f.Write(make([]byte, 8)); err != nil {
		return nil, err
	}
	offset, unmap, err := mapWord(f)
	if err != nil {
		return nil, fmt.Errorf("redistest: clock: %w", err)
	}
	c.offset = offset
	tb.Cleanup(unmap)
	return c, nil
}

func buildShim(dir, library string) error {
	var cc string
	for _, name := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			cc = path
			break
		}
	}
	if cc == "" {
		return ErrNoCompiler
	}
	source := filepath.Join(dir, "clock.c")
	if err := os.WriteFile(source, shim, 0o600); err != nil {
		return err
	}
	cmd := exec.Command(cc, "-shared", "-fPIC", "-O2", "-o", library, source)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case strings.Contains(string(out), "No such file or directory"):
		return fmt.Errorf("%w\n%s", ErrNoCompiler, out) // headers, or the start-up objects
	default:
		return fmt.Errorf("redistest: %s: %w\n%s", cc, err, out)
	}
}

// Jump sets the clock forward, or back when d is negative. Jumps add up. It
// must not be called after the end of the test.
func (c *Clock) Jump(d time.Duration) { c.offset.Add(int64(d)) }

func (c *Clock) env() []string {
	return []string{"LD_PRELOAD=" + c.library, "HOLDFAST_CLOCK=" + c.file}
}

// check returns nil if the clock is that of the process. The loader only warns
// of what it cannot preload.
func (c *Clock) check(pid int) error {
	if err := loaded(pid, c.library); err != nil {
		return fmt.Errorf("redistest: clock: %w", err)
	}
	return nil
}
