package holdfast

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/lease"
)

// Locker is what every handle of one lock can do. Write against it where a test
// is to put a fake in place of the lock.
type Locker interface {
	// Lock waits until the lock is taken or ctx ends. On error the context is ctx
	// itself, never nil.
	Lock(ctx context.Context) (context.Context, *Lease, error)
	// TryLock takes the lock if it is free and does not wait for it.
	TryLock(ctx context.Context) (context.Context, *Lease, error)
	// Do runs work under the lock.
	Do(ctx context.Context, work func(context.Context) error) error
}

// A State says how a lease stands, by the knowledge of this process.
type State uint8

const (
	// StateReleased: unlocked, or never held.
	StateReleased State = iota
	// StateHeld: held; the last renewal was good.
	StateHeld
	// StateUnsure: held, but renewals fail; it will be lost at its deadline unless
	// one succeeds.
	StateUnsure
	// StateLost: lost; see [LostError] in the cause of the context.
	StateLost
)

// String returns the state as a word.
func (s State) String() string {
	switch s {
	case StateHeld:
		return "held"
	case StateUnsure:
		return "unsure"
	case StateLost:
		return "lost"
	default:
		return "released"
	}
}

// A Lease is one hold of a lock: what Lock returns and Unlock ends. Its methods
// may be called from many goroutines at once and on a nil *Lease, which is not
// held.
type Lease struct {
	lock   *Handle
	hold   *lease.Hold
	member lease.Member
	ctx    leaseContext
}

// Context is the context that Lock returned. It ends with the caller's context,
// at the loss of the lease (the cause is a [*LostError]) or at Unlock (the cause
// is [ErrNotHeld]), whichever comes first. It has the caller's deadline, never
// the lease's.
func (l *Lease) Context() context.Context {
	if l == nil {
		return notHeld
	}
	return &l.ctx
}

// Unlock gives the lock back. Renewal stops and the lease's context ends before
// Redis is asked. A nested lease gives back its own hold; the lock is free when
// the last hold is given back. Each lease is unlocked once.
//
// Unlock uses the values of ctx, not its cancellation, so it works in a defer
// after ctx has ended. It answers within the session's Timeout or the rest of
// the lease, whichever is shorter.
//
// Errors: [ErrNotHeld] the second time and on nil; [ErrLost] if the lease was
// lost before; [ErrUnknown] if no answer came in time: then the release goes on
// in the background and the lock is free at the end of the lease at the latest.
func (l *Lease) Unlock(ctx context.Context) error {
	if l == nil {
		return ErrNotHeld
	}
	return l.lock.unlock(ctx, l)
}

// Name is the lock's full name, prefix and id included.
func (l *Lease) Name() string {
	if l == nil {
		return ""
	}
	return l.lock.key
}

// Token is the fencing token: larger than that of every earlier hold of this
// lock, the same for nested holds and through renewals, below 2^53. It is 0 if
// the lock is taken without [Options.Fencing]; 0 is never a valid token.
func (l *Lease) Token() uint64 {
	if l == nil {
		return 0
	}
	return l.hold.Token()
}

// Owner is the field that Redis stores for this hold, of the form
// label/session:sequence. It is for people; do not parse it.
func (l *Lease) Owner() string {
	if l == nil {
		return ""
	}
	return l.hold.Owner()
}

// Holds is the number of holds of this lease's owner that are not yet unlocked:
// 1 for a plain hold, more with nested ones, 0 once released or lost.
func (l *Lease) Holds() int {
	if l == nil {
		return 0
	}
	return l.hold.Holds()
}

// State says how the lease stands; it asks nobody.
func (l *Lease) State() State {
	if l == nil {
		return StateReleased
	}
	switch l.hold.State(&l.member) {
	case lease.Held:
		return StateHeld
	case lease.Unsure:
		return StateUnsure
	case lease.Lost:
		return StateLost
	default:
		return StateReleased
	}
}

// Valid reports whether the lease is held and its deadline is still ahead, by a
// clock that also runs while the machine sleeps. It asks nobody, and is false at
// once after a pause that outlasted the lease, before any timer has fired.
func (l *Lease) Valid() bool { return l.Remaining() > 0 }

// Remaining is the time until the lease is lost unless it is renewed; 0 if it is
// not held.
func (l *Lease) Remaining() time.Duration {
	if l == nil {
		return 0
	}
	return l.hold.Remaining(&l.member)
}

// Extend gives a lease without watchdog ([Options.Fixed]) d from now. Redis'
// own time is never shortened, so a d shorter than the rest ends the lease here
// at d, and in Redis when it would have ended.
//
// ctx bounds the call, and so does the session's Timeout. Errors: [ErrOption] for
// a d out of range or a lease with a watchdog, [ErrNotHeld], [ErrLost],
// [ErrUnavailable], [ErrUnknown]: the old deadline then stands.
func (l *Lease) Extend(ctx context.Context, d time.Duration) error {
	if l == nil {
		return ErrNotHeld
	}
	return l.lock.extend(ctx, l, d)
}

// WithLease returns ctx made under lease: locks taken with it re-enter lease's
// lock as long as that is held. It serves code that cannot pass the lease's own
// context along, such as a callback; the result does not end with the lease.
func WithLease(ctx context.Context, lease *Lease) context.Context {
	if lease == nil {
		return ctx
	}
	return context.WithValue(ctx, chainKey{}, &link{lease: lease, outer: chainOf(ctx)})
}

// WithoutLeases returns ctx made under no lease: locks taken with it are taken
// as a stranger.
func WithoutLeases(ctx context.Context) context.Context {
	return context.WithValue(ctx, chainKey{}, (*link)(nil))
}

// A link is one lease in the chain of leases that a context was made under.
type link struct {
	lease *Lease
	outer *link
}

type chainKey struct{}

func chainOf(ctx context.Context) *link {
	chain, _ := ctx.Value(chainKey{}).(*link)
	return chain
}

// leaseContext is a lease's context. It lives inside the lease, so that a lock
// costs one allocation less.
type leaseContext struct {
	context.Context
	chain link
}

// Value answers for the chain and passes on the rest, the standard library's own
// keys included, so that contexts derived from it need no goroutine.
func (c *leaseContext) Value(key any) any {
	if key == (chainKey{}) {
		return &c.chain
	}
	return c.Context.Value(key)
}

// notHeld is the context of a nil lease.
var notHeld = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrNotHeld)
	return ctx
}()
