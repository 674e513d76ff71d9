//go:build !linux

package bench

import "testing"

// Pin does nothing outside Linux, and says so.
func (l *Lab) Pin(tb testing.TB, cores int) {
	tb.Helper()
	tb.Logf("not pinned to %d cores: that needs Linux", cores)
}

// PinAsThis does nothing outside Linux.
func (l *Lab) PinAsThis(testing.TB, int) {}
