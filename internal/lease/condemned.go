package lease

import (
	"context"
	"time"
)

// sweeps are when the owner of an attempt of unknown outcome is looked for after
// it was given up, each counted from the one before: a first copy of the acquire
// may arrive as long as TCP repeats it.
var sweeps = [...]time.Duration{0, 250 * time.Millisecond, time.Second, 4 * time.Second, 15 * time.Second, 40 * time.Second, 60 * time.Second}

// A condemnedOwner has no right to any lock, and may yet get one.
type condemnedOwner struct {
	store Store
	owner string
	keep  time.Duration // until when its lock is to stay taken (a minimum hold)
	due   time.Duration
	step  int
}

// condemned are the condemned owners by the sweep that is next for them. All of
// one step wait equally long, so each list is in the order in which they are due.
type condemned struct {
	steps [len(sweeps)][]condemnedOwner
	now   int // being swept at this moment
}

func (c *condemned) len() int {
	n := c.now
	for i := range c.steps {
		n += len(c.steps[i])
	}
	return n
}

// next is when to begin the next sweep, 0 for never.
func (c *condemned) next() (at time.Duration) {
	if c.now >= maxSweeps { // whichever of them ends begins the next
		return 0
	}
	for i := range c.steps {
		if s := c.steps[i]; len(s) > 0 && (at == 0 || s[0].due < at) {
			at = s[0].due
		}
	}
	return at
}

// condemn has owner released as long as late copies of its acquire may arrive,
// but not before keep has passed. The mutex is held.
func (k *Keeper) condemn(s Store, owner string, keep time.Duration) {
	now := k.clock.Now()
	c := condemnedOwner{store: s, owner: owner, due: now, keep: now + keep}
	if keep > 0 {
		// Until then the lock is to stay taken, so the first sweeps are left out. A
		// late copy cannot take what is taken.
		c.step = len(sweeps) - 1
		c.due = now + keep + sweeps[c.step]
	}
	k.dead.steps[c.step] = append(k.dead.steps[c.step], c)
	k.arm(c.due, now)
}

// sweep begins what is due of the sweeps. The mutex is held.
func (k *Keeper) sweep(now time.Duration) {
	for i := range k.dead.steps {
		s := k.dead.steps[i]
		n := 0
		for n < len(s) && s[n].due <= now && k.dead.now < maxSweeps {
			c := s[n]
			n++
			k.dead.now++
			k.running++
			go k.sweepOne(c)
		}
		if s = s[n:]; len(s) == 0 {
			s = nil
		}
		k.dead.steps[i] = s
	}
}

// maxSweeps bounds the sweeps that are under way at once.
const maxSweeps = 64

func (k *Keeper) sweepOne(c condemnedOwner) {
	ctx := newCall(context.Background(), k.config.Timeout)
	_, err := c.store.Release(ctx, c.owner, 0)
	ctx.stop()
	now := k.clock.Now()
	k.mu.Lock()
	k.dead.now--
	if err == nil {
		c.step++
	}
	if c.step < len(sweeps) && !k.closed {
		wait := sweeps[c.step]
		if err != nil {
			wait = max(wait, time.Second)
		}
		c.due = now + wait
		k.dead.steps[c.step] = append(k.dead.steps[c.step], c)
	}
	k.sweep(now)
	k.rearm(now)
	k.mu.Unlock()
	k.finished()
}
