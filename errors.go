package holdfast

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// The errors of every lock kind. Match them with [errors.Is]; an error of Redis
// or of the network stays in the chain below them.
var (
	// ErrNotAcquired: the lock is taken, by the last word of Redis or because this
	// process holds it or queues for it. From Lock, TryLock and Do. It is joined
	// with ctx.Err() and context.Cause(ctx) if ctx ended, with neither if
	// [Options.Wait] did. Never used for an outage: a job that skips its turn when
	// the lock is taken would skip for weeks.
	ErrNotAcquired = fault.ErrNotAcquired

	// ErrUnavailable: no usable answer came in time. From every call. For Lock,
	// TryLock and Do it means: not held, and whatever the attempt did is undone.
	ErrUnavailable = fault.ErrUnavailable

	// ErrUnknown: the command was sent and its outcome was never learnt. From
	// Unlock, Extend and ForceUnlock. An Unlock goes on in the background.
	ErrUnknown = fault.ErrUnknown

	// ErrLost: the lock was held and is lost. The cause of a lease's context, and
	// the answer of Unlock, Extend and Do; always a [*LostError].
	ErrLost = fault.ErrLost

	// ErrNotHeld: the lease was released before, or never taken. Also the cause of
	// a lease's context after Unlock.
	ErrNotHeld = fault.ErrNotHeld

	// ErrClosed: the session is closed or closing.
	ErrClosed = fault.ErrClosed

	// ErrName: the name cannot be a lock's; the text says why.
	ErrName = fault.ErrName

	// ErrOption: an option cannot work, or the kind does not use it; the text names
	// the field, the value and the limit.
	ErrOption = fault.ErrOption

	// ErrWrongType: the key holds data that is not this kind of lock. It is left as
	// it is.
	ErrWrongType = fault.ErrWrongType
)

// A LostError says which lease was lost, why and when. It matches [ErrLost].
type LostError struct {
	// Kind is the lock kind, such as "reentrant".
	Kind string
	// Name is the lock's full name, prefix and id included.
	Name string
	// Reason says what ended the lease.
	Reason Reason
	// At is when this process knew of it, by its own clock.
	At time.Time
	// Err is the failure that led to the loss, nil if none did.
	Err error
}

// Error names the lock and the reason.
func (e *LostError) Error() string {
	text := fmt.Sprintf("holdfast: %s lock %q lost: %s", e.Kind, e.Name, e.Reason)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Is reports whether target is [ErrLost].
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns Err.
func (e *LostError) Unwrap() error { return e.Err }

// A Reason says why a lease was lost.
type Reason string

const (
	// ReasonExpired: the lease ran out, since renewals failed or came too late, or
	// Redis no longer had the key.
	ReasonExpired = Reason(fault.Expired)
	// ReasonTaken: Redis has another owner in the key.
	ReasonTaken = Reason(fault.Taken)
	// ReasonForced: the key was gone after a release that this process did not
	// send: ForceUnlock.
	ReasonForced = Reason(fault.Forced)
	// ReasonMaxHold: the hold reached [Options.MaxHold].
	ReasonMaxHold = Reason(fault.MaxHold)
	// ReasonAbandoned: the caller's context ended and [Options.Grace] went by
	// without an Unlock.
	ReasonAbandoned = Reason(fault.Abandoned)
	// ReasonClosed: the session was closed and did not wait any longer.
	ReasonClosed = Reason(fault.Closed)
)
