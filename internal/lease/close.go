package lease

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// Close refuses new and waiting calls, waits until every hold is unlocked or ctx
// ends, then ends the remaining holds and releases them, within Timeout even if
// ctx is over. It returns ctx's error if holds remained. Only the first call does
// anything; later ones return nil.
func (k *Keeper) Close(ctx context.Context) error {
	k.mu.Lock()
	if k.closing {
		k.mu.Unlock()
		return nil
	}
	k.closing = true
	k.mu.Unlock()
	k.refuseAll(false)

	// Sweeps go on for minutes, and nobody has a right to what they look for.
	_ = k.idle(ctx, func() bool { return k.held == 0 && k.running == k.dead.now })
	k.until.Store(int64(k.clock.Now() + k.config.Timeout))
	k.refuseAll(true)
	remained := k.endAll()
	// Every command is over by then; what follows an answer takes no time.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.config.Timeout+lastWords)
	defer cancel()
	_ = k.idle(last, func() bool { return k.held == 0 && k.running == k.dead.now })
	k.lastSweep(last)

	k.mu.Lock()
	k.closed = true
	k.dead.waiting = nil
	if k.alarm != nil {
		k.alarm.Stop()
	}
	k.mu.Unlock()
	if remained {
		return ctx.Err()
	}
	return nil
}

// refuseAll refuses all callers that wait, and with parts also those that want a
// part of what this process holds.
func (k *Keeper) refuseAll(parts bool) {
	var stops []func()
	k.mu.Lock()
	for _, q := range k.queues {
		for w := q.first; w != nil; {
			next := w.next
			if parts || !w.request.Part {
				k.refuse(w, fault.ErrClosed)
				w.signal()
			}
			w = next
		}
		if stop := k.settleQueue(q); stop != nil {
			stops = append(stops, stop)
		}
	}
	k.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}

// lastWords is how much later than its commands Close may end.
const lastWords = 100 * time.Millisecond

// bounded is the bound of a command that is sent now.
func (k *Keeper) bounded(d time.Duration) time.Duration {
	if until := time.Duration(k.until.Load()); until > 0 {
		d = min(d, max(until-k.clock.Now(), time.Millisecond))
	}
	return d
}

// idle waits until ok, which is called under the mutex, or ctx ends.
func (k *Keeper) idle(ctx context.Context, ok func() bool) error {
	for {
		k.mu.Lock()
		if ok() {
			k.mu.Unlock()
			return nil
		}
		if k.changed == nil {
			k.changed = make(chan struct{})
		}
		changed := k.changed
		k.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// endAll ends every hold and then releases it, and reports whether there were
// any: a lock that is released under running work would have two owners.
func (k *Keeper) endAll() bool {
	k.mu.Lock()
	var ended []*Hold
	for len(k.heap) > 0 {
		ended = append(ended, k.lose(k.heap[0].tenure.hold, fault.Closed, nil))
	}
	k.mu.Unlock()
	given := map[*Tenure]bool{}
	k.tellLost(ended)
	for _, h := range ended {
		if given[h.tenure] { // it is shared
			continue
		}
		given[h.tenure] = true
		p := &parting{hold: h, values: context.Background()}
		if minimum := h.tenure.terms.MinHold; minimum > 0 {
			p.keep = max(0, h.tenure.took+minimum-k.clock.Now())
		}
		k.mu.Lock()
		k.running++
		k.mu.Unlock()
		go func() { _ = k.letGo(p, 0) }()
	}
	return len(ended) > 0
}

// lastSweep looks for all condemned owners once more, and waits for what is still
// under way, until ctx ends.
func (k *Keeper) lastSweep(ctx context.Context) {
	k.mu.Lock()
	rest := k.dead.waiting
	k.dead.waiting = nil
	k.mu.Unlock()
	for len(rest) > 0 && ctx.Err() == nil {
		n := min(len(rest), maxSweeps)
		k.mu.Lock()
		for _, c := range rest[:n] {
			k.dead.now++
			k.running++
			go k.sweepOne(c)
		}
		k.mu.Unlock()
		rest = rest[n:]
		_ = k.idle(ctx, func() bool { return k.dead.now == 0 })
	}
	_ = k.idle(ctx, func() bool { return k.running == 0 })
}
