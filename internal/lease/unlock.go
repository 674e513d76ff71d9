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
		lost := k.loseAll(h.tenure, fault.Expired, h.tenure.failure)
		m.released = true
		k.mu.Unlock()
		k.tellLost(lost)
		return 0, h.loss.Cause
	}
	m.released = true
	k.mu.Unlock()

	// The context ends while this lease still counts: nobody else can have the lock
	// before, whichever of several leases turns out to be the last.
	m.cancel(fault.ErrNotHeld)

	k.mu.Lock()
	if h.state == Lost { // in between
		k.mu.Unlock()
		return 0, h.loss.Cause
	}
	h.unlink(m)
	h.holds--
	if left = int(h.holds); left > 0 {
		k.mu.Unlock()
		if h.request.Shared {
			return left, nil
		}
		return left, h.uncount(values)
	}
	return 0, k.giveBack(h, &parting{hold: h, values: values})
}

// surplus gives back a hold that nobody has seen, since its caller had left.
func (k *Keeper) surplus(h *Hold) {
	k.mu.Lock()
	if h.state == Lost {
		k.mu.Unlock()
		return
	}
	_ = k.giveBack(h, &parting{hold: h, values: context.Background(), unseen: true})
}

// giveBack gives h, which has no lease left, to the next of this process or to
// the store. It is called with the mutex held, and lets go of it.
func (k *Keeper) giveBack(h *Hold, p *parting) error {
	t, q := h.tenure, h.tenure.queue
	now := k.clock.Now()
	h.state = Released
	k.held--
	t.leave(h)
	if t.hold != nil { // others of this process share it
		k.fell()
		k.mu.Unlock()
		return nil
	}
	if heir := k.heir(h, now); heir != nil {
		t.passes++
		heir.hold, heir.handoff = k.own(t, new(Hold), heir.request, now), true
		q.remove(heir)
		k.waiting--
		k.giveUp(heir)
		heir.signal()
		k.mu.Unlock()
		return nil
	}
	k.end(t)
	if !h.request.Shared {
		k.letOthers(q, now)
		q.parting = t
	}
	bound := min(k.config.Timeout, max(t.deadline-now, 0))
	here := bound >= ownGoroutine
	if next := q.successor(now); here && next != nil && !p.unseen && t.terms.MinHold == 0 && !k.closing {
		block := k.ask(next)
		k.running++
		k.mu.Unlock()
		return k.succeed(p, bound, next, block)
	}
	switch {
	case h.request.Shared: // the head may have asked all the time
	case here && q.first != nil:
		// There is nothing for the head to do before the answer: to wake it twice for
		// each release is what a busy lock would cost most.
		k.partings[q] = now + answerWithin
		k.arm(now+answerWithin, now)
	default:
		q.wakeHead()
	}
	stop := k.settleQueue(q)
	k.running++
	k.fell()
	k.mu.Unlock()
	if stop != nil {
		stop()
	}
	if minimum := t.terms.MinHold; minimum > 0 && !p.unseen {
		p.keep = max(0, t.took+minimum-now)
	}
	return k.part(p, bound, here)
}

// letOthers takes the tenure, which has ended, out of q. The others go first: this
// process waits for its own message, or long enough for it to have come, and after a
// series of wins for a little longer. The head is to be woken. The mutex is held.
func (k *Keeper) letOthers(q *queue, now time.Duration) {
	q.tenure, q.word, q.freed = nil, silence, 1<<62
	q.echoes++
	q.woken, q.parting = false, nil
	q.lookAt, q.notBefore = now+max(2*k.trip, 200*time.Microsecond), 0
	if q.wins >= 2 {
		q.notBefore = now + jitter(2*k.trip)
	}
}

// A parting is a release under way. Only the goroutine that runs it touches it.
type parting struct {
	hold     *Hold
	values   context.Context
	call     call // of the first copy
	keep     time.Duration
	failures int
	resent   bool // a copy of which nothing was heard may have worked
	unseen   bool // no caller ever had the hold
}

// successor is the head of q, if it may ask as soon as this process lets go, since
// nobody is there to go first. The mutex is held.
func (q *queue) successor(now time.Duration) *waiter {
	w := q.first
	if !q.alone || w == nil || w.once || now >= q.humbleAt {
		return nil
	}
	if s, ok := w.request.Store.(Successor); !ok || !s.Succeeds() {
		return nil
	}
	return w
}

// succeed releases in the store and asks for next, the head of the queue, in one
// round trip. A grant for next that nobody wants any more is given back apart.
func (k *Keeper) succeed(p *parting, bound time.Duration, next *waiter, block int) error {
	t, sent := p.hold.tenure, k.clock.Now()
	ctx := k.begin(p.values, &p.call, k.bounded(bound), sent)
	s := next.request.Store.(Successor).Succeed(ctx, t.owner, next.owner, block)
	ctx.stop()
	now := k.clock.Now()
	over, pause, err := k.farewell(p, sent, now, s.Farewell, s.FarewellErr)
	if _, surplus := k.answered(next, sent, now, s.Grant, s.GrantErr); surplus != nil {
		go func() {
			k.surplus(surplus)
			k.finished()
		}()
	}
	if over {
		return err
	}
	return k.partLater(p, pause, bound-(now-sent), err)
}

const (
	// ownGoroutine: a release with that much time sends its first copy on the
	// caller's goroutine, for nearly always it is the only one. The bound of such a
	// copy may cost the client a connection, so it has to be a generous one.
	ownGoroutine = time.Second

	// answerWithin is how long the next local waiter leaves a release alone.
	answerWithin = 5 * time.Millisecond
)

// part releases in the store and waits for the answer for bound, which is the
// session's timeout or the rest of the lease; after that the release goes on by
// itself.
func (k *Keeper) part(p *parting, bound time.Duration, here bool) error {
	if here {
		began := k.clock.Now()
		over, pause, err := k.tryPart(p, bound, began)
		if over {
			return err
		}
		bound -= k.clock.Now() - began
		return k.partLater(p, pause, bound, err)
	}
	return k.partLater(p, 0, bound, errNoAnswer)
}

// partLater has the release go on after pause, and waits for it for bound.
func (k *Keeper) partLater(p *parting, pause, bound time.Duration, err error) error {
	answer := make(chan error, 1)
	go func() { answer <- k.letGo(p, pause) }()
	if bound > 0 {
		timer := k.newTimer(bound)
		defer k.freeTimer(timer)
		select {
		case err := <-answer:
			return err
		case <-timer.C:
		}
	}
	return errors.Join(fault.ErrUnknown, err)
}

// heir is the local waiter that the tenure of h may be handed over to, nil if
// there is none. The mutex is held.
func (k *Keeper) heir(h *Hold, now time.Duration) *waiter {
	t, terms := h.tenure, h.tenure.terms
	w := t.queue.first
	switch {
	case w == nil, w.once, terms.Fixed, terms.MinHold > 0, t.failures > 0, t.suspect,
		int(t.passes) >= terms.Handoff, now-t.took >= handoffTime,
		2*(t.deadline-now) < terms.Lease,
		terms.Fencing && t.tokens == 0,
		*w.request.Terms != *terms, k.closing:
		return nil
	}
	if len(h.turn) > 0 { // a count that is under way would reach the next owner
		return nil
	}
	if t.bound { // what is a part of it is not the next owner's
		return nil
	}
	if h.request.Shared { // the head may have an attempt under way, and would pass others
		return nil
	}
	if first := k.queues[w.request.First]; first != nil && first.length > 0 {
		return nil
	}
	return w
}

// letGo releases in the store, and goes on until the answer is known or the
// lease is over.
func (k *Keeper) letGo(p *parting, pause time.Duration) error {
	for {
		if pause > 0 {
			k.pause(pause)
		}
		var over bool
		var err error
		if over, pause, err = k.tryPart(p, k.config.Timeout, k.clock.Now()); over {
			return err
		}
	}
}

// tryPart sends one release, at sent. If it is not over, the next is to follow
// after pause; if it is, the parting is counted off.
func (k *Keeper) tryPart(p *parting, bound, sent time.Duration) (over bool, pause time.Duration, err error) {
	t := p.hold.tenure
	ctx := k.begin(p.values, &p.call, k.bounded(bound), sent)
	answer, err := t.store.Release(ctx, t.owner, p.keep)
	ctx.stop()
	return k.farewell(p, sent, k.clock.Now(), answer, err)
}

// farewell draws the conclusions from the answer to a release.
func (k *Keeper) farewell(p *parting, sent, now time.Duration, answer Farewell, answerErr error) (over bool, pause time.Duration, err error) {
	t, err, done := p.hold.tenure, answerErr, false
	switch {
	// The lease was valid when the first copy was sent. So if a copy of which nothing
	// was heard may have worked, finding nothing means that it did; receipts know.
	case err == nil && (answer.Verdict == Mine || p.resent):
		over, done = true, true
	case err == nil:
		over, err = true, k.foundLost(p, answer.Verdict)
	case fault.ClassOf(err) == fault.Fatal:
		over, err = true, unwrap(err)
	default:
		p.resent = p.resent || fault.ClassOf(err) == fault.Unknown && !t.store.Receipts()
		pause = jitter(min(4*time.Millisecond<<min(p.failures, 10), longestBackoff))
		p.failures++
		err = unwrap(err)
		// The store lets go by itself at the deadline.
		until := time.Duration(k.until.Load())
		over = now+pause >= t.deadline || until > 0 && now+pause >= until
		if over {
			err = errors.Join(fault.ErrUnknown, err)
		}
	}
	k.mu.Lock()
	q := t.queue
	if done {
		q.heardBy(answer.Heard)
	}
	if q.parting == t { // the head has not asked since
		if done && q.alone && !q.humble(now) {
			q.lookAt, q.notBefore = 0, 0
		}
		delete(k.partings, q)
		q.wakeHead()
	}
	if done {
		k.sawTrip(now - sent)
	}
	if over {
		q.freed = now
		if t.tainted {
			k.condemn(t.store, t.owner, now)
		}
		k.running--
		k.fell()
	}
	k.mu.Unlock()
	return over, pause, err
}

// heardBy notes how many heard of a release. The mutex is held.
func (q *queue) heardBy(heard int) {
	own := 0
	if q.hears {
		own = 1
	}
	q.alone = heard >= 0 && heard <= own
}

// humble reports whether it is time for q to let others go first although nobody
// else heard of a release. The mutex is held.
func (q *queue) humble(now time.Duration) bool {
	due := q.humbleAt > 0 && now >= q.humbleAt
	if due || q.humbleAt == 0 {
		q.humbleAt = now + humbleEvery
	}
	return due
}

// foundLost is the end of a hold of which the store says, at its release, that
// it had been lost.
func (k *Keeper) foundLost(p *parting, v Verdict) error {
	h := p.hold
	k.mu.Lock()
	if h.loss != nil { // Close ended it and was late
		defer k.mu.Unlock()
		return h.loss.Cause
	}
	h.state = Lost
	h.loss = &Loss{Reason: lossOf(v), At: time.Now()}
	h.loss.Cause = k.config.Events.Cause(h, h.loss)
	if q := h.tenure.queue; q.echoes > 0 {
		q.echoes-- // no message was sent
	}
	k.mu.Unlock()
	if k.config.Events.Lost != nil && !p.unseen {
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
	x := &extension{hold: h, lease: lease, done: make(chan struct{})}
	k.spawn(func() { k.extend(ctx, x, min(k.config.Timeout, rest)) })
	select {
	case <-x.done:
		return x.err
	case <-ctx.Done():
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-x.done:
		return x.err
	default:
		x.left = true
		return errors.Join(fault.ErrUnknown, ctx.Err())
	}
}

// An extension is one Extend under way; the keeper's mutex guards it until done.
type extension struct {
	hold  *Hold
	lease time.Duration
	done  chan struct{}
	left  bool // the caller was told that the old deadline stands
	err   error
}

func (k *Keeper) extend(values context.Context, x *extension, bound time.Duration) {
	h, t := x.hold, x.hold.tenure
	ctx := newCall(values, bound)
	sent := k.clock.Now()
	o := t.store.Renewer().Renew(ctx, []Renewal{t.store.Renewal(t.owner, x.lease)})[0]
	ctx.stop()
	now := k.clock.Now()

	var lost []*Hold
	k.mu.Lock()
	switch {
	case o.Err != nil:
		x.err = errors.Join(sentinelFor(o.Err), unwrap(o.Err))
	case h.loss != nil:
		x.err = h.loss.Cause
	case !h.live():
		x.err = fault.ErrNotHeld
	case now >= t.deadline, o.Verdict != Mine:
		reason := fault.Expired // too late by this clock, whatever the answer is
		if now < t.deadline {
			reason = lossOf(o.Verdict)
		}
		lost = append(lost, k.lose(h, reason, nil))
		x.err = h.loss.Cause
	case !x.left:
		t.deadline = t.terms.deadline(sent, x.lease)
		k.confirmed(t)
		k.schedule(t, now)
	}
	if lost == nil {
		close(x.done)
	}
	k.mu.Unlock()
	if lost != nil { // contexts end before anybody is told
		k.tellLost(lost)
		close(x.done)
	}
}

// sentinelFor is the sentinel for a command that failed.
func sentinelFor(err error) error {
	if fault.ClassOf(err) == fault.Unknown {
		return fault.ErrUnknown
	}
	return fault.ErrUnavailable
}
