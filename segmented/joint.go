package segmented

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
)

// A Joint is several leases as one. It is lost with the first of its parts. Its
// methods may be called from many goroutines at once and on a nil *Joint, which is
// not held. It has no fencing token: each part has its own.
type Joint struct {
	parts  []*holdfast.Lease
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// Context is the context that the joint lease was returned with. It ends with the
// caller's context, at the loss of the first part (the cause is a
// [*holdfast.LostError]) or at Unlock (the cause is [holdfast.ErrNotHeld]).
func (j *Joint) Context() context.Context {
	if j == nil {
		return (*holdfast.Lease)(nil).Context()
	}
	return j.ctx
}

// Parts are the leases that it is made of, in the order in which they were taken.
func (j *Joint) Parts() []*holdfast.Lease {
	if j == nil {
		return nil
	}
	return slices.Clone(j.parts)
}

// unlocks is how many parts are released at once.
const unlocks = 32

// Unlock gives all parts back, lost ones excepted. The context ends before Redis
// is asked. It is as [holdfast.Lease.Unlock], which says what ctx is for.
//
// Errors: [holdfast.ErrNotHeld] the second time and on nil; [holdfast.ErrLost] if
// a part was lost before; [holdfast.ErrUnknown] if the release of a part was not
// confirmed in time.
func (j *Joint) Unlock(ctx context.Context) error {
	if j == nil {
		return holdfast.ErrNotHeld
	}
	j.cancel(holdfast.ErrNotHeld)
	errs := make([]error, len(j.parts))
	var wg sync.WaitGroup
	for worker := range min(unlocks, len(j.parts)) {
		release := func() {
			for i := worker; i < len(j.parts); i += unlocks {
				errs[i] = j.parts[i].Unlock(ctx)
			}
		}
		if worker == 0 && len(j.parts) == 1 {
			release()
		} else {
			wg.Go(release)
		}
	}
	wg.Wait()
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) > 0 && !slices.ContainsFunc(errs, func(err error) bool { return !errors.Is(err, holdfast.ErrNotHeld) }) {
		return holdfast.ErrNotHeld
	}
	return errors.Join(errs...)
}

// State is that of the worst part: lost, released, unsure or held.
func (j *Joint) State() holdfast.State {
	if j == nil {
		return holdfast.StateReleased
	}
	worst := holdfast.StateHeld
	for _, part := range j.parts {
		switch state := part.State(); {
		case state == holdfast.StateLost:
			return state
		case state == holdfast.StateReleased, worst == holdfast.StateHeld:
			worst = state
		}
	}
	return worst
}

// Valid reports whether all parts are held and their deadlines ahead; see
// [holdfast.Lease.Valid].
func (j *Joint) Valid() bool { return j.Remaining() > 0 }

// Remaining is the time until the first part is lost unless it is renewed; 0 if
// one is not held.
func (j *Joint) Remaining() time.Duration {
	if j == nil || len(j.parts) == 0 {
		return 0
	}
	left := j.parts[0].Remaining()
	for _, part := range j.parts[1:] {
		left = min(left, part.Remaining())
	}
	return left
}
