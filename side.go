package holdfast

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/lease"
)

// What locks with more than one side need: a hold of one side that is part of a hold
// of another, and a hold that becomes one of another side.

// LockUnder takes the lock as a part of outer, a live lease of another side of the same
// lock: nobody who waits is asked to go first. It answers [ErrLost] if outer is found to
// be lost. From here on outer is not handed over between goroutines of this process: the
// lock taken under it may outlive it.
// With once, or a negative Wait, it asks one time.
func (h *Handle) LockUnder(ctx context.Context, outer *Lease, once bool) (context.Context, *Lease, error) {
	if h.err != nil {
		return ctx, nil, h.err
	}
	if !outer.hold.Bind() { // no longer held: then the caller is a stranger
		return h.take(ctx, once || h.options.Wait < 0)
	}
	s := h.session
	if err := h.options.within(&outer.lock.options); err != nil {
		return ctx, nil, h.wrap("lock", err)
	}
	request := h.request
	// A queue of its own: those in the lock's queue wait for outer.
	request.ID.Kind += " under " + outer.Owner()
	request.Part = true
	request.Store = h.lock.(core.Part).Under(outer.Owner())
	r, err := s.keeper.Acquire(ctx, &request, once || h.options.Wait < 0)
	if err != nil {
		if errors.Is(err, core.ErrOuterLost) {
			s.keeper.Suspect(outer.lock.request.ID) // it learns of it by itself then
			err = &LostError{Kind: outer.lock.kind.Name(), Name: outer.lock.key, Reason: ReasonExpired, At: time.Now()}
		}
		err = h.wrap("lock", err)
		s.refused(ctx, h, r, err)
		return ctx, nil, err
	}
	l := h.lease(ctx, r.Hold)
	s.acquired(ctx, h, r, 1)
	return l.Context(), l, nil
}

// Convert makes l, a lease of h, a lease of to: one step in which nobody else gets the
// lock. l's context ends first, and l is as unlocked. The new lease descends from the
// context that l was taken with. If l's hold has other leases they keep what they have,
// and l alone is exchanged.
//
// Of ctx only the values are used. On error nothing is held that l held, [ErrOption]
// and [ErrNotHeld] excepted, which change nothing.
func (h *Handle) Convert(ctx context.Context, l *Lease, to *Handle) (context.Context, *Lease, error) {
	switch {
	case h.err != nil:
		return ctx, nil, h.err
	case l == nil:
		return ctx, nil, h.wrap("downgrade", ErrNotHeld)
	case l.lock.session != h.session || l.lock.request.ID != h.request.ID:
		return ctx, nil, h.wrap("downgrade", fmt.Errorf("%w: the lease is one of %s %q", ErrOption, l.lock.kind.Name(), l.lock.key))
	}
	s := h.session
	began := s.clock.Now()
	caller := l.member.Caller()
	hold, err := l.hold.Convert(ctx, &l.member, &to.request)
	if errors.Is(err, lease.ErrNested) {
		_, next, err := to.LockUnder(caller, l, true)
		if err != nil {
			_ = l.Unlock(ctx)
			return ctx, nil, err
		}
		if err := l.Unlock(ctx); err != nil {
			_ = next.Unlock(ctx)
			return ctx, nil, err
		}
		return next.Context(), next, nil
	}
	if err != nil {
		if !errors.Is(err, ErrLost) {
			err = h.wrap("downgrade", err)
		}
		if !errors.Is(err, ErrNotHeld) {
			s.released(ctx, h, l.hold, 0, err)
		}
		return ctx, nil, err
	}
	s.released(ctx, h, l.hold, 0, nil)
	next := to.lease(caller, hold)
	s.acquired(ctx, to, lease.Result{Hold: hold, Waited: s.clock.Now() - began, Attempts: 1}, 1)
	return next.Context(), next, nil
}
