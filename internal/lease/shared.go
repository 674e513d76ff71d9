package lease

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// A Queuer is a Store that knows who waits.
type Queuer interface {
	// TakeOrWait is Take for a caller that goes on waiting when it is refused. behind
	// is how many others of this process wait, and are not let in together with it.
	TakeOrWait(ctx context.Context, owner string, block, behind int) (Grant, error)

	// Withdraw says that nobody of this process waits any more. It may not get through:
	// what TakeOrWait told has to end by itself.
	Withdraw(ctx context.Context) error
}

// take asks once for w.
func (k *Keeper) take(ctx context.Context, w *waiter, block int) (Grant, error) {
	if q, ok := w.request.Store.(Queuer); ok && !w.once {
		return q.TakeOrWait(ctx, w.owner, block, w.behind)
	}
	return w.request.Store.Take(ctx, w.owner, block)
}

// withdrawal is what says that nobody waits in q any more, nil if nobody was told
// that somebody does. The mutex is held; the withdrawal has to be called.
func (k *Keeper) withdrawal(q *queue) func() {
	if q.told == nil || q.attempt != nil { // whoever ends the attempt sees to it
		return nil
	}
	store := q.told
	q.told = nil
	return func() {
		k.Background(func(ctx context.Context) {
			for failures := 0; ; failures++ {
				err := store.Withdraw(ctx)
				if err == nil || fault.ClassOf(err) == fault.Fatal || ctx.Err() != nil {
					return
				}
				k.pause(jitter(min(4*time.Millisecond<<min(failures, 10), longestBackoff)))
				if k.waits(q.id) {
					return
				}
			}
		})
	}
}

// waits reports whether the store was told that somebody waits for that lock.
func (k *Keeper) waits(id ID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	q := k.queues[id]
	return k.closed || q != nil && q.told != nil
}

// Background runs f on a goroutine that Close waits for. ctx is bounded as that of a
// command.
func (k *Keeper) Background(f func(ctx context.Context)) {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return
	}
	k.running++
	k.mu.Unlock()
	go func() {
		ctx := newCall(context.Background(), k.bounded(k.config.Timeout))
		f(ctx)
		ctx.stop()
		k.finished()
	}()
}

// A shared lock is one that many may hold. What is said of a queue in the package
// documentation is different then:
//
//   - the head asks also while this process holds the lock;
//   - a grant is for the head and for all callers with equal terms that wait at that
//     moment: they are holds of one tenure, with one owner in the store and one
//     renewal, which is given back when the last of them is unlocked. Who comes later
//     asks with an owner of its own, so that the store can let others go first. Leases
//     without a watchdog share nothing, since each may be extended;
//   - nested holds are not told to the store: its owner has one hold.

// shares reports whether a grant for w is for other too.
func (w *waiter) shares(other *waiter) bool {
	return w.request.Shared && !w.request.Terms.Fixed && *w.request.Terms == *other.request.Terms
}

// behindOf is how many wait in w's queue and would not be let in with it. The mutex
// is held.
func (w *waiter) behindOf() (n int) {
	for other := w.queue.first; other != nil; other = other.next {
		if other != w && !w.shares(other) {
			n++
		}
	}
	return n
}

// admit lets those into the tenure of h, which was granted to w, that wait at this
// moment and may share it. The mutex is held.
func (k *Keeper) admit(w *waiter, h *Hold) {
	q := w.queue
	for other := q.first; other != nil; {
		next := other.next
		if other != w && w.shares(other) {
			other.hold = k.join(h.tenure, new(Hold), other.request, h.granted)
			q.remove(other)
			k.waiting--
			k.giveUp(other)
			other.signal()
		}
		other = next
	}
	k.schedule(h.tenure, h.granted)
}

// leave takes h out of the holds of t. The mutex is held.
func (t *Tenure) leave(h *Hold) {
	for at := &t.hold; *at != nil; at = &(*at).sibling {
		if *at == h {
			*at, h.sibling = h.sibling, nil
			return
		}
	}
}

// setState says how all holds of t stand. The mutex is held.
func (t *Tenure) setState(s State) {
	for h := t.hold; h != nil; h = h.sibling {
		h.state = s
	}
}

// loseAll ends all holds of t as lost; see lose.
func (k *Keeper) loseAll(t *Tenure, reason fault.Reason, err error) (lost []*Hold) {
	for t.hold != nil {
		lost = append(lost, k.lose(t.hold, reason, err))
	}
	return lost
}

// Bind makes sure that h is not handed over any more, since another hold is to be a part
// of it, and reports whether h is held.
func (h *Hold) Bind() bool {
	k := h.keeper
	now := k.clock.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !h.live() || now >= h.tenure.deadline {
		return false
	}
	h.tenure.bound = true
	return true
}

// enterShared takes a nested hold of h, of which the store need not know.
func (h *Hold) enterShared(ctx context.Context) (holds int, err error) {
	if ctx.Err() != nil {
		return 0, ended(ctx, silence, nil)
	}
	k := h.keeper
	now := k.clock.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !h.live() || now >= h.tenure.deadline {
		return 0, ErrStranger
	}
	h.holds++
	return int(h.holds), nil
}
