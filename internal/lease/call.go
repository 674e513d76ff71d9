package lease

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A call is the context of one command: it has the values of the caller's
// context, so that traces join up, but not its end, since a command that was
// sent is never abandoned; and it has a deadline of its own.
type call struct {
	values  context.Context
	horizon *horizon
}

var _ context.Context = (*call)(nil)

// newCall returns a context with the values of values that ends after within.
// Stop it when the command has returned.
func newCall(values context.Context, within time.Duration) *call {
	c := new(call)
	c.start(values, &horizon{at: time.Now().Add(within)})
	return c
}

// Patient reports whether ctx is the context of a command that has the session's
// whole time-out: of two of them, the one that was begun first ends first.
func Patient(ctx context.Context) bool {
	c, ok := ctx.(*call)
	return ok && c.horizon.shared
}

// begin returns such a context: unused, if it is unused; whoever still has one
// that was used before keeps that, and another is made.
func (k *Keeper) begin(values context.Context, unused *call, within, now time.Duration) *call {
	c := unused
	if c.horizon != nil {
		c = new(call)
	}
	if within != k.config.Timeout {
		c.start(values, &horizon{at: time.Now().Add(within)})
		return c
	}
	c.start(values, sharedHorizon(&k.horizon, within, now))
	return c
}

// Calls are the contexts of commands that are no lock's and have the same time-out:
// those that are sent at about the same time wait for one timer. The zero value is
// not ready; set Timeout first.
type Calls struct {
	Timeout time.Duration
	horizon atomic.Pointer[horizon]
}

// Begin returns a context with the values of values that ends after the time-out, or
// up to a sixty-fourth earlier, and not with values.
func (c *Calls) Begin(values context.Context) context.Context {
	call := new(call)
	call.start(values, sharedHorizon(&c.horizon, c.Timeout, time.Since(epoch)))
	return call
}

// epoch is where the clock of all Calls begins.
var epoch = time.Now()

func (c *call) start(values context.Context, h *horizon) {
	if values.Done() != nil {
		values = context.WithoutCancel(values) // or contexts made from this one would end with it
	}
	c.values, c.horizon = values, h
}

func (c *call) Value(key any) any { return c.values.Value(key) }

func (c *call) Deadline() (time.Time, bool) { return c.horizon.at, true }

func (c *call) Done() <-chan struct{} { return c.horizon.wait() }

func (c *call) Err() error { return c.horizon.over() }

// stop releases the timer; a second call does nothing.
func (c *call) stop() {
	c.horizon.stop(context.Canceled)
}

// A horizon is a deadline, of one call or of several.
//
// The command of a single call is mostly answered without anybody asking for
// Done, so the timer is made only when somebody does.
type horizon struct {
	at     time.Time
	end    time.Duration // the same by the clock of those who share it, if it is shared
	shared bool          // then done is there from the beginning, and nothing else is used

	mu    sync.Mutex // guards what follows
	done  chan struct{}
	timer *time.Timer
	err   error
}

// sharedHorizon is one that nobody can end before its time: the last one, or a new one
// in its place. Commands that are sent at about the same time wait for one timer, which
// may be a little early for the later ones.
func sharedHorizon(last *atomic.Pointer[horizon], within, now time.Duration) *horizon {
	h := last.Load()
	if h == nil || h.end-now < within-within/64 {
		h = &horizon{at: time.Now().Add(within), end: now + within, shared: true, done: make(chan struct{})}
		time.AfterFunc(within, func() { close(h.done) })
		last.Store(h)
	}
	return h
}

// wait returns the channel that is closed at the end.
func (h *horizon) wait() <-chan struct{} {
	if h.shared {
		return h.done
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.done == nil {
		h.done = make(chan struct{})
		if h.err != nil {
			close(h.done)
		} else {
			h.timer = time.AfterFunc(time.Until(h.at), func() { h.stop(context.DeadlineExceeded) })
		}
	}
	return h.done
}

// over is why the end has come, nil if it has not.
func (h *horizon) over() error {
	if h.shared {
		select {
		case <-h.done:
			return context.DeadlineExceeded
		default:
			return nil
		}
	}
	if !time.Now().Before(h.at) {
		h.stop(context.DeadlineExceeded) // the timer may be late, or nobody asked for it
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// stop ends the horizon of a single call.
func (h *horizon) stop(err error) {
	if h.shared {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return
	}
	h.err = err
	if h.timer != nil {
		h.timer.Stop()
	}
	if h.done != nil {
		close(h.done)
	}
}
