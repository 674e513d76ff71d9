package holdfasttest_test

import (
	"fmt"
	"runtime"
	"testing"
)

// fakeTB is a test for an example, which has none, and for tests of failures.
type fakeTB struct {
	cleanups []func()
	message  string
}

func newTB() *fakeTB { return &fakeTB{} }

// newTBOf is a fake whose cleanups run with those of t.
func newTBOf(t *testing.T) *fakeTB {
	t.Helper()
	tb := newTB()
	t.Cleanup(tb.end)
	return tb
}

func (tb *fakeTB) Helper()           {}
func (tb *fakeTB) Cleanup(fn func()) { tb.cleanups = append(tb.cleanups, fn) }

func (tb *fakeTB) Fatalf(format string, args ...any) {
	tb.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failure is what fn failed the test with.
func (tb *fakeTB) failure(fn func()) string {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	<-done
	return tb.message
}

// end is the end of the test.
func (tb *fakeTB) end() {
	for len(tb.cleanups) > 0 {
		last := len(tb.cleanups) - 1
		fn := tb.cleanups[last]
		tb.cleanups = tb.cleanups[:last]
		fn()
	}
}
