package lease

import (
	"math/rand/v2"
	"time"
)

// jitter returns a random duration between half of d and d.
func jitter(d time.Duration) time.Duration {
	if d <= 1 {
		return d
	}
	return d/2 + rand.N(d/2+1)
}

// newTimer returns a timer that fires after d. Waits mostly end before their
// time, so their timers are used again.
func (k *Keeper) newTimer(d time.Duration) *time.Timer {
	d = max(d, 1) // see arm for what 0 would do
	if t, ok := k.timers.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

// freeTimer stops t; since Go 1.23 nothing is left in its channel then.
func (k *Keeper) freeTimer(t *time.Timer) {
	t.Stop()
	k.timers.Put(t)
}

// pause sleeps for about d.
func (k *Keeper) pause(d time.Duration) {
	t := k.newTimer(d)
	<-t.C
	k.freeTimer(t)
}

// A tenureHeap has the tenures that something is to be done about, the earliest
// first. Each entry has four children, and the time beside the tenure: with ten
// thousand locks it is the cache misses that count.
type tenureHeap []wakeup

type wakeup struct {
	at     time.Duration
	tenure *Tenure
}

const heapArity = 4

// set puts t where it belongs with at, whether it is in the heap or not.
func (h *tenureHeap) set(t *Tenure, at time.Duration) {
	i := int(t.index)
	if i < 0 {
		i = len(*h)
		*h = append(*h, wakeup{})
	}
	h.settle(i, wakeup{at, t})
}

// remove takes t out, if it is in.
func (h *tenureHeap) remove(t *Tenure) {
	i := int(t.index)
	if i < 0 {
		return
	}
	t.index = -1
	n := len(*h) - 1
	last := (*h)[n]
	(*h)[n] = wakeup{}
	*h = (*h)[:n]
	if i < n {
		h.settle(i, last)
	}
}

// settle puts w into the hole at i, which moves to where w belongs.
func (h *tenureHeap) settle(i int, w wakeup) {
	all := *h
	for i > 0 {
		parent := (i - 1) / heapArity
		if all[parent].at <= w.at {
			break
		}
		all.put(i, all[parent])
		i = parent
	}
	for {
		first := i*heapArity + 1
		if first >= len(all) {
			break
		}
		least := first
		for child := first + 1; child < min(first+heapArity, len(all)); child++ {
			if all[child].at < all[least].at {
				least = child
			}
		}
		if all[least].at >= w.at {
			break
		}
		all.put(i, all[least])
		i = least
	}
	all.put(i, w)
}

func (h tenureHeap) put(i int, w wakeup) {
	h[i] = w
	w.tenure.index = int32(i)
}
