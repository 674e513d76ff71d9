package core

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/scripts"
)

// Combine is Run for a caller whose context is that of a command of a session.
func (e *Env) Combine(ctx context.Context, b *scripts.Batch, keys, args []string) (rueidis.RedisMessage, error) {
	return e.combiner(b).run(ctx, keys, args)
}

// Bound sets how long callers wait for a command to come back, and how many may
// be under way however long the way is.
func (e *Env) Bound(b *scripts.Batch, stuckAfter time.Duration, maxRoom int) {
	c := e.combiner(b)
	c.stuckAfter, c.maxRoom = stuckAfter, maxRoom
}

// CombineAll has even a few callers wait for each other.
func (e *Env) CombineAll(b *scripts.Batch) { e.combiner(b).few = 0 }

// Callers is how many are under way or wait.
func (e *Env) Callers(b *scripts.Batch) int {
	c := e.combiner(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.callers
}

// Way has the way seem to have so much room on top of the least, although commands are
// back before one of them has had its headway: what comes back says that it is short.
func (e *Env) Way(b *scripts.Batch, room int) {
	c := e.combiner(b)
	c.headway = time.Hour
	c.trip, c.room = time.Duration(room)*c.headway, c.minRoom+room
}

// Waiting is how many callers wait to be sent.
func (e *Env) Waiting(b *scripts.Batch) int {
	c := e.combiner(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting)
}

// The bounds of a combiner.
const (
	FirstRoom  = firstRoom
	MaxRoom    = maxRoom
	MaxErrands = maxErrands
	Few        = few
)

// Bound sets how long callers wait for a command to come back.
func (c *Combiner) Bound(stuckAfter time.Duration) { c.stuckAfter = stuckAfter }

// Waiting is how many callers wait to be sent.
func (c *Combiner) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting)
}

// BroadRoom is how many commands of a Combiner may be under way on a short way.
const BroadRoom = broadRoom
