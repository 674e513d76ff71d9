package lease

import (
	"sync/atomic"
	"time"
)

// A Clock tells the time since it was made, on a clock that also runs while the
// machine sleeps: Go's monotonic clock stands still then, and a lease that ran
// out during the sleep would look alive after it.
//
// Asking the system for the slept time costs two system calls, so it is asked
// only when the wall clock and the monotonic clock, which one call of time.Now
// returns together, have drifted apart: that happens on resume and when somebody
// sets the wall clock, and in the second case the answer is "did not sleep".
type Clock struct {
	start time.Time
	wall  int64        // start's wall clock, nanoseconds
	drift atomic.Int64 // wall minus monotonic time since start, when slept was last read
	slept atomic.Int64 // nanoseconds slept since start
	base  time.Duration
	sleep func() time.Duration // total time this machine has slept
}

// driftStep is how far the clocks may drift before the slept time is read again.
// It has to be below what a lease's margin forgives, and above the noise.
const driftStep = time.Millisecond

// NewClock returns a clock that starts at 0.
func NewClock() *Clock { return newClock(machineSlept) }

func newClock(sleep func() time.Duration) *Clock {
	now := time.Now()
	return &Clock{start: now, wall: now.UnixNano(), base: sleep(), sleep: sleep}
}

// Now is the time since the clock was made.
func (c *Clock) Now() time.Duration {
	now := time.Now()
	awake := now.Sub(c.start)
	drift := now.UnixNano() - c.wall - int64(awake)
	if d := drift - c.drift.Load(); d > int64(driftStep) || d < -int64(driftStep) {
		// Sleeping only grows: of two goroutines that read it at once the larger
		// reading is right.
		slept := int64(c.sleep() - c.base)
		for old := c.slept.Load(); slept > old && !c.slept.CompareAndSwap(old, slept); {
			old = c.slept.Load()
		}
		c.drift.Store(drift)
	}
	return awake + time.Duration(c.slept.Load())
}
