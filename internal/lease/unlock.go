package lease

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// Unlock ends lease m of h; commands get the values of values. It returns the
// number of leases left.
func (h *Hold) Unlock(values context.Context, m *Member) (left int, err error) {
	k := h.keeper
	now := k.clock.Now()
	k.mu.Lock()
	switch {
	case m.released:
		k.mu.Unlock()
		return 0, fault.ErrNotHeld
	case h.state == Lost:
		m.released = true
		k.mu.Unlock()
		return 0, h.loss.Cause
	case now >= h.tenure.deadline: // the alarm is late
		lost := k.lose(h, fault.Expired, h.tenure.failure)
		m.released = true
		k.mu.Unlock()
		k.tellLost([]*Hold{lost})
		return 0, h.loss.Cause
	}
	m.released = true
	h.unlink(m)
	h.holds--
	left = h.holds
	if left > 0 {
		k.mu.Unlock()
		m.cancel(fault.ErrNotHeld)
		return left, h.uncount(values)
	}
	k.mu.Unlock()
	return 0, k.release(h, values, m)
}

// release gives h back, whose last lease is m: to the next of this process, or
// to the store. m is nil if nobody ever saw the hold.
func (k *Keeper) release(h *Hold, values context.Context, m *Member) error {
	t := h.tenure
	k.mu.Lock()
	if h.state == Lost { // between the last look and now
		k.mu.Unlock()
		if m != nil {
			m.cancel(h.loss.Cause)
		}
		return h.loss.Cause
	}
	h.state = Released
	k.unschedule(t)
	t.hold = nil
	k.mu.Unlock()

	// The context ends before anybody else can have the lock.
	if m != nil {
		m.cancel(fault.ErrNotHeld)
	}

	now := k.clock.Now()
	k.mu.Lock()
	q := t.queue
	k.held--
	if heir := k.heir(t, now); heir != nil {
		t.passes++
		heir.hold, heir.handoff = k.own(t, heir.request, now), true
		q.remove(heir)
		k.waiting--
		k.giveUp(heir)
		heir.signal()
		k.mu.Unlock()
		return nil
	}
	k.end(t)
	q.tenure = nil
	q.echoes++
	// The others go first: this process waits for its own message, or long enough
	// for it to have come, and after a series of wins for a little longer.
	q.woken = false
	q.lookAt, q.notBefore = now+max(2*k.trip, 200*time.Microsecond), 0
	if q.wins >= 2 {
		q.notBefore = now + jitter(2*k.trip)
	}
	q.wakeHead()
	stop := k.settleQueue(q)
	out := &parting{done: make(chan struct{})}
	k.running++
	k.fell()
	k.mu.Unlock()
	if stop != nil {
		stop()
	}
	if values == nil {
		values = context.Background()
	}
	var keep time.Duration
	if minimum := t.terms.MinHold; minimum > 0 {
		keep = max(0, t.took+minimum-now)
	}
	go func() {
		out.err = k.letGo(h, values, keep)
		close(out.done)
		k.finished()
	}()
	select { // without a timer if the answer is quick
	case <-out.done:
		return out.err
	default:
	}
	timer := k.newTimer(min(k.config.Timeout, max(t.deadline-now, 0)))
	defer k.freeTimer(timer)
	select {
	case <-out.done:
		return out.err
	case <-timer.C:
		return errors.Join(fault.ErrUnknown, errNoAnswer)
	}
}

// A parting is a release under way.
type parting struct {
	done chan struct{}
	err  error
}

// heir is the local waiter that t may be handed over to, nil if there is none.
// The mutex is held.
func (k *Keeper) heir(t *Tenure, now time.Duration) *waiter {
	w := t.queue.first
	terms := t.terms
	switch {
	case w == nil, w.once, terms.Fixed, terms.MinHold > 0, t.failures > 0, t.suspect,
		t.passes >= terms.Handoff, now-t.took >= handoffTime,
		2*(t.deadline-now) < terms.Lease,
		terms.Fencing && t.tokens == 0,
		w.request.Terms != *terms, k.closing:
		return nil
	}
	return w
}

// letGo releases in the store, and goes on until the answer is known or the
// lease is over.
func (k *Keeper) letGo(h *Hold, values context.Context, keep time.Duration) (err error) {
	t := h.tenure
	defer func() {
		if t.tainted {
			k.mu.Lock()
			k.condemn(t.store, t.owner, keep)
			k.mu.Unlock()
		}
	}()
	// Its lease was valid when this was first sent, so if a copy of which nothing
	// was heard may have worked, finding nothing means that it did; receipts know.
	resent := false
	for failures := 0; ; failures++ {
		ctx := newCall(values, k.config.Timeout)
		sent := k.clock.Now()
		verdict, err := t.store.Release(ctx, t.owner, keep)
		ctx.stop()
		now := k.clock.Now()
		switch {
		case err == nil && (verdict == Mine || resent):
			k.mu.Lock()
			k.sawTrip(now - sent)
			k.mu.Unlock()
			return nil
		case err == nil:
			return k.foundLost(h, verdict)
		case fault.ClassOf(err) == fault.Fatal:
			return unwrap(err)
		}
		resent = resent || fault.ClassOf(err) == fault.Unknown && !t.store.Receipts()
		pause := jitter(min(4*time.Millisecond<<min(failures, 10), longestBackoff))
		if now+pause >= t.deadline { // the store lets go by itself
			return errors.Join(fault.ErrUnknown, unwrap(err))
		}
		k.pause(pause)
	}
}

// foundLost is the end of a hold of which the store says, at its release, that
// it had been lost.
func (k *Keeper) foundLost(h *Hold, v Verdict) error {
	reason := fault.Expired
	if v == Other {
		reason = fault.Taken
	}
	k.mu.Lock()
	if h.loss != nil { // Close ended it and was late
		defer k.mu.Unlock()
		return h.loss.Cause
	}
	h.state = Lost
	h.loss = &Loss{Reason: reason, At: time.Now()}
	h.loss.Cause = k.config.Events.Cause(h, h.loss)
	if q := h.tenure.queue; q.echoes > 0 {
		q.echoes-- // no message was sent
	}
	k.mu.Unlock()
	if k.config.Events.Lost != nil {
		k.config.Events.Lost(h, h.loss)
	}
	return h.loss.Cause
}

// Extend gives a lease that is not renewed a new length, counted from now.
func (h *Hold) Extend(ctx context.Context, m *Member, lease time.Duration) error {
	k := h.keeper
	now := k.clock.Now()
	k.mu.Lock()
	t := h.tenure
	switch {
	case m.released:
		k.mu.Unlock()
		return fault.ErrNotHeld
	case h.state == Lost:
		k.mu.Unlock()
		return h.loss.Cause
	case now >= t.deadline:
		lost := k.lose(h, fault.Expired, nil)
		k.mu.Unlock()
		k.tellLost([]*Hold{lost})
		return h.loss.Cause
	}
	rest := t.deadline - now
	k.mu.Unlock()
	answer := make(chan error, 1)
	k.spawn(func() { answer <- k.extend(ctx, h, lease, min(k.config.Timeout, rest)) })
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return errors.Join(fault.ErrUnknown, ctx.Err())
	}
}

func (k *Keeper) extend(values context.Context, h *Hold, lease, bound time.Duration) error {
	t := h.tenure
	ctx := newCall(values, bound)
	sent := k.clock.Now()
	o := t.lane.renewer.Renew(ctx, []Renewal{t.store.Renewal(t.owner, lease)})[0]
	ctx.stop()
	now := k.clock.Now()
	if o.Err != nil {
		return errors.Join(sentinelFor(o.Err), unwrap(o.Err))
	}
	k.mu.Lock()
	switch {
	case !h.live():
		defer k.mu.Unlock()
		if h.loss != nil {
			return h.loss.Cause
		}
		return fault.ErrNotHeld
	case now >= t.deadline:
		// Too late by this clock: its alarm says so.
		lost := k.lose(h, fault.Expired, nil)
		k.mu.Unlock()
		k.tellLost([]*Hold{lost})
		return h.loss.Cause
	case o.Verdict != Mine:
		reason := fault.Expired
		if o.Verdict == Other {
			reason = fault.Taken
		}
		lost := k.lose(h, reason, nil)
		k.mu.Unlock()
		k.tellLost([]*Hold{lost})
		return h.loss.Cause
	}
	t.deadline = t.terms.deadline(sent, lease)
	k.schedule(t, now)
	k.mu.Unlock()
	return nil
}

// sentinelFor is the sentinel for a command that failed.
func sentinelFor(err error) error {
	if fault.ClassOf(err) == fault.Unknown {
		return fault.ErrUnknown
	}
	return fault.ErrUnavailable
}
