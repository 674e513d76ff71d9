package lease

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// A Converter is a Store whose owners can become owners of another lock, in one step
// that lets nobody in between.
type Converter interface {
	// Convert makes owner an owner of the other lock. Mine means that it is one, now
	// or by an earlier copy.
	Convert(ctx context.Context, owner string) (Verdict, error)
}

// ErrNested says that a hold has other leases, which would lose what they have.
var ErrNested = errors.New("other leases of the hold are not unlocked")

// Caller is the context that the lease m was taken with.
func (m *Member) Caller() context.Context { return m.caller }

// Convert makes h, of which m is the only lease, a hold of what r asks for; Join has
// to follow. m's context ends first. Commands get the values of values.
//
// On error nothing is held: what is left in the stores is looked for and released. But
// [ErrNested] and [fault.ErrNotHeld] change nothing.
func (h *Hold) Convert(values context.Context, m *Member, r *Request) (*Hold, error) {
	k := h.keeper
	now := k.clock.Now()
	k.mu.Lock()
	t, q := h.tenure, h.tenure.queue
	switch {
	case m.released:
		k.mu.Unlock()
		return nil, fault.ErrNotHeld
	case h.state == Lost:
		m.released = true
		k.mu.Unlock()
		return nil, h.loss.Cause
	case now >= t.deadline: // the alarm is late
		lost := k.loseAll(t, fault.Expired, t.failure)
		m.released = true
		k.mu.Unlock()
		k.tellLost(lost)
		return nil, h.loss.Cause
	case h.holds > 1: // a count that is under way will find nothing to count
		k.mu.Unlock()
		return nil, ErrNested
	}
	// Nobody re-enters from here on, and q still has the tenure: no other caller of
	// this process asks before the context has ended.
	m.released, h.state, h.holds = true, Released, 0
	h.unlink(m)
	k.held--
	t.leave(h)
	k.end(t)
	k.running++
	k.mu.Unlock()
	defer k.finished()
	m.cancel(fault.ErrNotHeld)

	sent, verdict, doubt, err := k.convert(values, t, min(k.config.Timeout, t.deadline-now))
	now = k.clock.Now()
	terms := r.Terms
	k.mu.Lock()
	k.letOthers(q, now)
	q.wakeHead()
	stop := k.settleQueue(q)
	var next *Hold
	closed := k.until.Load() > 0
	switch {
	case err == nil && verdict == Mine && now < terms.deadline(sent, terms.Lease):
		// The tenure is in no queue: who waits there is let in by the store. A late copy
		// of the acquire would be the old owner, and one of this would make it the new.
		w := &waiter{request: r, owner: t.owner, queue: &queue{keeper: k, id: r.ID, dropped: true}, tainted: doubt}
		next = k.granted(w, sent, now, Grant{})
		if t.tainted {
			k.condemn(t.store, t.owner, now)
		}
	case err == nil && verdict != Mine:
		if q.echoes > 0 {
			q.echoes-- // no message was sent
		}
		h.state = Lost
		h.loss = &Loss{Reason: lossOf(verdict), At: time.Now()}
		h.loss.Cause = k.config.Events.Cause(h, h.loss)
		err = h.loss.Cause
		if t.tainted {
			k.condemn(t.store, t.owner, now)
		}
	default:
		if err == nil {
			err = errNoAnswer
		}
		err = errors.Join(fault.ErrUnavailable, unwrap(err))
		k.condemn(t.store, t.owner, now)
		k.condemn(r.Store, t.owner, now)
	}
	k.fell()
	k.mu.Unlock()
	if stop != nil {
		stop()
	}
	switch {
	case next == nil && h.loss != nil:
		if k.config.Events.Lost != nil {
			k.config.Events.Lost(h, h.loss)
		}
	case next != nil && closed: // nobody would end it any more
		k.surplus(next)
		return nil, fault.ErrClosed
	}
	return next, err
}

// convert asks until the answer is known or bound has passed. sent is when the copy was
// sent that was answered; doubt says that another one may still arrive.
func (k *Keeper) convert(values context.Context, t *Tenure, bound time.Duration) (sent time.Duration, v Verdict, doubt bool, err error) {
	store, ok := t.store.(Converter)
	if !ok {
		return 0, Gone, false, &fault.Failure{Class: fault.Fatal, Err: errors.New("the lock cannot become another")}
	}
	end := k.clock.Now() + bound
	for failures := 0; ; failures++ {
		sent = k.clock.Now()
		ctx := newCall(values, k.bounded(max(end-sent, time.Millisecond)))
		v, err = store.Convert(ctx, t.owner)
		ctx.stop()
		pause := jitter(min(4*time.Millisecond<<min(failures, 10), longestBackoff))
		if err == nil || fault.ClassOf(err) == fault.Fatal || k.clock.Now()+pause >= end {
			return sent, v, doubt, err
		}
		doubt = doubt || fault.ClassOf(err) == fault.Unknown
		k.pause(pause)
	}
}
