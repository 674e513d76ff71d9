package lease

import (
	"container/heap"
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
// first.
type tenureHeap []*Tenure

var _ heap.Interface = (*tenureHeap)(nil)

func (h tenureHeap) Len() int           { return len(h) }
func (h tenureHeap) Less(i, j int) bool { return h[i].wake < h[j].wake }
func (h tenureHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push is for package heap.
func (h *tenureHeap) Push(x any) {
	t := x.(*Tenure)
	t.index = len(*h)
	*h = append(*h, t)
}

// Pop is for package heap.
func (h *tenureHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.index = -1
	return t
}
