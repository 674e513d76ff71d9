package lease

import (
	"context"
	"sync"
	"time"
)

// A call is the context of one command: it has the values of the caller's
// context, so that traces join up, but not its end, since a command that was
// sent is never abandoned; and it has a deadline of its own.
//
// Most commands are answered without anybody asking for Done, so the timer is
// made only when somebody does.
type call struct {
	context.Context // values only
	deadline        time.Time

	mu    sync.Mutex // guards what follows
	done  chan struct{}
	timer *time.Timer
	err   error
}

// newCall returns a context with the values of values that ends after within.
// Stop it when the command has returned.
func newCall(values context.Context, within time.Duration) *call {
	if values.Done() != nil {
		values = context.WithoutCancel(values) // or contexts made from this one would end with it
	}
	return &call{Context: values, deadline: time.Now().Add(within)}
}

func (c *call) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *call) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		} else {
			c.timer = time.AfterFunc(time.Until(c.deadline), func() { c.end(context.DeadlineExceeded) })
		}
	}
	return c.done
}

func (c *call) Err() error {
	if !time.Now().Before(c.deadline) {
		c.end(context.DeadlineExceeded) // the timer may be late, or nobody asked for it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// stop releases the timer; a second call does nothing.
func (c *call) stop() { c.end(context.Canceled) }

func (c *call) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.done != nil {
		close(c.done)
	}
}
