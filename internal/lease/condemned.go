package lease

import (
	"container/heap"
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// sweeps are when the owner of an attempt of unknown outcome is looked for after
// it was given up, each counted from the one before: a first copy of the acquire
// may arrive as long as TCP repeats it.
var sweeps = [...]time.Duration{0, 250 * time.Millisecond, time.Second, 4 * time.Second, 15 * time.Second, 40 * time.Second, 60 * time.Second}

const (
	// maxSweeps bounds the sweeps that are under way at once.
	maxSweeps = 64

	// sweepAgain is the longest pause after a sweep that got no answer. The first is
	// short: the lock may be taken by nobody at that moment.
	sweepAgain = time.Second

	// longestSweep bounds how long an owner is looked for while nobody answers;
	// after that its lock ends with its lease.
	longestSweep = 10 * time.Minute
)

// A condemnedOwner has no right to any lock, and may yet get one.
type condemnedOwner struct {
	store Store
	owner string
	since time.Duration
	due   time.Duration
	step  int
	fails int // since the last answer
}

// condemned are the condemned owners, the first to be swept first.
type condemned struct {
	waiting sweepHeap
	now     int // being swept at this moment
}

func (c *condemned) len() int { return len(c.waiting) + c.now }

// next is when to begin the next sweep, 0 for never.
func (c *condemned) next() time.Duration {
	if len(c.waiting) == 0 || c.now >= maxSweeps { // whichever of them ends begins the next
		return 0
	}
	return max(c.waiting[0].due, 1)
}

// condemn has owner released from at on as long as late copies of its acquire may
// arrive. The mutex is held.
func (k *Keeper) condemn(s Store, owner string, at time.Duration) {
	if k.closed {
		return
	}
	heap.Push(&k.dead.waiting, condemnedOwner{store: s, owner: owner, since: at, due: at})
	k.arm(at, k.clock.Now())
}

// sweepOnce has owner, whose lease is over at at, released then, one time. The mutex
// is held.
func (k *Keeper) sweepOnce(s Store, owner string, at time.Duration) {
	if k.closed {
		return
	}
	heap.Push(&k.dead.waiting, condemnedOwner{store: s, owner: owner, since: at, due: at, step: len(sweeps) - 1})
	k.arm(at, k.clock.Now())
}

// sweep begins what is due of the sweeps. The mutex is held.
func (k *Keeper) sweep(now time.Duration) {
	for len(k.dead.waiting) > 0 && k.dead.waiting[0].due <= now && k.dead.now < maxSweeps {
		c := heap.Pop(&k.dead.waiting).(condemnedOwner)
		k.dead.now++
		k.running++
		go k.sweepOne(c)
	}
}

func (k *Keeper) sweepOne(c condemnedOwner) {
	ctx := newCall(context.Background(), k.bounded(k.config.Timeout))
	_, err := c.store.Release(ctx, c.owner, 0)
	ctx.stop()
	now := k.clock.Now()
	k.mu.Lock()
	k.dead.now--
	var wait time.Duration
	if err == nil || fault.ClassOf(err) == fault.Fatal {
		c.fails = 0
		if c.step++; c.step < len(sweeps) {
			wait = sweeps[c.step]
		}
	} else {
		wait = min(4*time.Millisecond<<min(c.fails, 10), sweepAgain)
		c.fails++
	}
	if c.due = now + wait; c.step < len(sweeps) && now-c.since < longestSweep && !k.closed {
		heap.Push(&k.dead.waiting, c)
	}
	if !k.closing { // Close decides what is swept a last time
		k.sweep(now)
		k.rearm(now)
	}
	k.mu.Unlock()
	k.finished()
}

// A sweepHeap has the owner that is due first first.
type sweepHeap []condemnedOwner

func (h sweepHeap) Len() int           { return len(h) }
func (h sweepHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h sweepHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is for package heap.
func (h *sweepHeap) Push(x any) { *h = append(*h, x.(condemnedOwner)) }

// Pop is for package heap.
func (h *sweepHeap) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	(*h)[last] = condemnedOwner{}
	*h = (*h)[:last]
	return c
}
