package lease

import (
	"context"
	"sync"
	"time"
)

// A call is the context of one command: it has the values of the caller's
// context, so that traces join up, but not its end, since a command that was
// sent is never abandoned; and it has a deadline of its own.
type call struct {
	values  context.Context
	horizon *horizon
	shared  bool // the horizon is others' too
}

var _ context.Context = (*call)(nil)

// newCall returns a context with the values of values that ends after within.
// Stop it when the command has returned.
func newCall(values context.Context, within time.Duration) *call {
	c := new(call)
	c.start(values, &horizon{at: time.Now().Add(within)})
	return c
}

// begin makes c such a context if it is new; whoever still has one that was used
// before keeps that, and another is made.
func (k *Keeper) begin(c *call, values context.Context, within time.Duration) *call {
	if c.horizon != nil {
		c = new(call)
	}
	now := time.Now()
	if within != k.config.Timeout {
		c.start(values, &horizon{at: now.Add(within)})
		return c
	}
	// Commands that are sent at about the same time wait for one timer. It may be a
	// little early for the later ones.
	h := k.horizon.Load()
	if h == nil || h.at.Sub(now) < within-within/64 {
		h = &horizon{at: now.Add(within)}
		k.horizon.Store(h)
	}
	c.start(values, h)
	c.shared = true
	return c
}

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
	if !c.shared {
		c.horizon.end(context.Canceled)
	}
}

// A horizon is a deadline.
//
// Most commands are answered without anybody asking for Done, so the timer is
// made only when somebody does.
type horizon struct {
	at time.Time

	mu    sync.Mutex // guards what follows
	done  chan struct{}
	timer *time.Timer
	err   error
}

// wait returns the channel that is closed at the end.
func (h *horizon) wait() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.done == nil {
		h.done = make(chan struct{})
		if h.err != nil {
			close(h.done)
		} else {
			h.timer = time.AfterFunc(time.Until(h.at), func() { h.end(context.DeadlineExceeded) })
		}
	}
	return h.done
}

// over is why the end has come, nil if it has not.
func (h *horizon) over() error {
	if !time.Now().Before(h.at) {
		h.end(context.DeadlineExceeded) // the timer may be late, or nobody asked for it
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

func (h *horizon) end(err error) {
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
