package lease

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// ErrStranger says that a hold which was to be re-entered is no longer held: the
// caller is a stranger to the lock.
var ErrStranger = errors.New("no longer held")

// Enter takes a nested hold of h, whose number it returns; Join has to follow.
func (h *Hold) Enter(ctx context.Context, wait time.Duration) (holds int, err error) {
	if h.request.Shared {
		return h.enterShared(ctx)
	}
	k := h.keeper
	if ctx.Err() != nil {
		return 0, ended(ctx, silence, nil)
	}
	var end <-chan time.Time
	if wait > 0 {
		timer := k.newTimer(wait)
		defer k.freeTimer(timer)
		end = timer.C
	}
	left := func() error {
		if ctx.Err() != nil {
			return ended(ctx, silence, nil)
		}
		return errors.Join(fault.ErrUnavailable, errNoAnswer)
	}
	turn := h.turnstile()
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return 0, left()
	case <-end:
		return 0, left()
	}
	n := &entry{done: make(chan struct{})}
	k.spawn(func() {
		h.enter(ctx, n)
		<-turn
	})
	select {
	case <-n.done:
		return n.holds, n.err
	case <-ctx.Done():
	case <-end:
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-n.done:
		return n.holds, n.err
	default:
	}
	n.left = true
	return 0, left()
}

// An entry is one Enter under way; the keeper's mutex guards it until done.
type entry struct {
	done  chan struct{}
	left  bool // the caller is gone
	holds int
	err   error
}

// enter sets the count one higher, or sees to it that it is as before.
func (h *Hold) enter(values context.Context, n *entry) {
	k := h.keeper
	k.mu.Lock()
	if !h.live() {
		n.err = ErrStranger
		close(n.done)
		k.mu.Unlock()
		return
	}
	target := int(h.holds) + 1
	k.mu.Unlock()
	verdict, err := h.setCount(values, target, func() bool { return n.left })

	k.mu.Lock()
	var lost []*Hold
	repair := 0
	switch {
	case !h.live():
		n.err = ErrStranger
		if h.loss != nil {
			n.err = h.loss.Cause
		}
	case err != nil:
		n.err = errors.Join(fault.ErrUnavailable, unwrap(err))
		repair = int(h.holds)
	case verdict != Mine:
		lost = append(lost, k.lose(h, lossOf(verdict), nil))
		n.err = h.loss.Cause
	case n.left:
		repair = int(h.holds)
	default:
		h.holds++
		n.holds = int(h.holds)
	}
	if lost == nil { // under the mutex: a caller that leaves later is told of its hold
		close(n.done)
	}
	k.mu.Unlock()
	if lost != nil { // contexts end before anybody is told
		k.tellLost(lost)
		close(n.done)
	}
	if repair > 0 {
		// Nobody decides by this number, but people and Java read it.
		_, _ = h.setCount(values, repair, func() bool { return true })
	}
}

// lossOf is why a hold is lost of which the store says v.
func lossOf(v Verdict) fault.Reason {
	if v == Other {
		return fault.Taken
	}
	return fault.Expired
}

// uncount sets the count after a nested lease was unlocked.
func (h *Hold) uncount(values context.Context) error {
	k := h.keeper
	answer := make(chan error, 1)
	k.mu.Lock()
	rest := h.tenure.deadline - k.clock.Now()
	k.mu.Unlock()
	k.spawn(func() {
		turn := h.turnstile()
		turn <- struct{}{}
		defer func() { <-turn }()
		k.mu.Lock()
		target := int(h.holds)
		if !h.live() {
			err := h.outcome()
			k.mu.Unlock()
			answer <- err
			return
		}
		k.mu.Unlock()
		verdict, err := h.setCount(values, target, func() bool { return false })
		var lost []*Hold
		k.mu.Lock()
		switch {
		case !h.live():
			err = h.outcome()
		case err != nil:
			err = errors.Join(fault.ErrUnknown, unwrap(err))
		case verdict != Mine:
			lost = append(lost, k.lose(h, lossOf(verdict), nil))
			err = h.loss.Cause
		}
		k.mu.Unlock()
		k.tellLost(lost)
		answer <- err
	})
	timer := k.newTimer(min(k.config.Timeout, max(rest, 0)))
	defer k.freeTimer(timer)
	select {
	case err := <-answer:
		return err
	case <-timer.C:
		return errors.Join(fault.ErrUnknown, errNoAnswer)
	}
}

// outcome is what became of a lease whose hold has ended meanwhile: it was lost
// with the hold, or given back by whoever gave back the last one. The mutex is
// held.
func (h *Hold) outcome() error {
	if h.loss != nil {
		return h.loss.Cause
	}
	return nil
}

// turnstile lets the scripts that set the count through one by one: send to it
// before, receive from it after.
func (h *Hold) turnstile() chan struct{} {
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	if h.turn == nil {
		h.turn = make(chan struct{}, 1)
	}
	return h.turn
}

// setCount sets the count in the store, and tries again after failures that pass
// until the hold ends or enough says so under the mutex.
func (h *Hold) setCount(values context.Context, holds int, enough func() bool) (Verdict, error) {
	k, t := h.keeper, h.tenure
	for failures := 0; ; failures++ {
		k.mu.Lock()
		rest := t.deadline - k.clock.Now()
		k.mu.Unlock()
		ctx := newCall(values, min(k.config.Timeout, max(rest, time.Millisecond)))
		verdict, err := t.store.Count(ctx, t.owner, holds)
		ctx.stop()
		if err == nil || fault.ClassOf(err) == fault.Fatal {
			return verdict, err
		}
		k.mu.Lock()
		over := enough() || !h.live() || k.clock.Now() >= t.deadline
		k.mu.Unlock()
		if over {
			return verdict, err
		}
		k.pause(jitter(min(4*time.Millisecond<<min(failures, 10), longestBackoff)))
	}
}
