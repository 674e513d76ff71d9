package lease

import (
	"context"
	"time"
)

// A Store asks for one lock: Redis in production, a fake in tests. It is called
// outside every mutex, from many goroutines, and bounds nothing itself: ctx has
// the deadline. Errors are [fault.Failure] values.
type Store interface {
	// Take asks once for a root hold under owner, which it may have asked for
	// before: if owner has the lock, the answer is as the first would have been.
	// block is how many tokens are wanted.
	Take(ctx context.Context, owner string, block int) (Grant, error)

	// Count sets the number of holds of owner.
	Count(ctx context.Context, owner string, holds int) (Verdict, error)

	// Release gives the lock back, and leaves it taken for keep, if positive.
	// Mine means that it is free now, or was freed by an earlier copy.
	Release(ctx context.Context, owner string, keep time.Duration) (Farewell, error)

	// Receipts reports whether Release knows what earlier copies did. Otherwise a
	// copy that finds nothing cannot tell whether an earlier one worked.
	Receipts() bool

	// Renewer renews locks of this kind, many at once. Stores whose Renewer is
	// equal are renewed together.
	Renewer() Renewer

	// Renewal says what the renewer is to do for owner.
	Renewal(owner string, lease time.Duration) Renewal

	// Subscribe has l notified when the lock may have become free, and first when it
	// is certain that no later release will be missed. It does not wait.
	Subscribe(l Listener) (stop func())

	// Listening reports whether it may be worth while to call Join.
	Listening() bool

	// Join subscribes only if that is certain already and costs nothing.
	Join(l Listener) (stop func(), ok bool)

	// LongestSleep bounds how long a waiter may sleep although the holder keeps
	// the lock, where messages can get lost unnoticed; 0 is no bound.
	LongestSleep() time.Duration
}

// A Successor is a Store that can release a lock and ask for it anew in one round
// trip.
type Successor interface {
	// Succeeds reports whether it can, as it is set up.
	Succeeds() bool

	// Succeed is Release for owner, and behind it Take for next, one after the other,
	// so that others may come in between. Each has an answer of its own.
	Succeed(ctx context.Context, owner, next string, block int) Succession
}

// A Succession is the answer to Succeed.
type Succession struct {
	Farewell    Farewell
	FarewellErr error
	Grant       Grant
	GrantErr    error
}

// A Renewer renews leases.
type Renewer interface {
	// Renew gives every lock a lease at least as long as asked for, counted from
	// now, if its owner has it. It returns one outcome for each, in order. More locks
	// than a batch has are several batches in one round trip.
	Renew(ctx context.Context, locks []Renewal) []Outcome
}

// A Renewal is one lock to renew.
type Renewal struct {
	Key   string
	Owner string
	Lease time.Duration
}

// An Outcome is what became of one Renewal. Verdict counts if Err is nil.
type Outcome struct {
	Verdict Verdict
	Err     error
}

// A Grant is the answer to Take.
type Grant struct {
	Taken bool
	Token uint64 // the first of Block tokens; 0 without fencing
	Block int
	Left  time.Duration // not taken: how long the holder may still keep it; negative: no end
}

// A Verdict says whose lock it is.
type Verdict uint8

const (
	// Mine: the owner has it.
	Mine Verdict = iota
	// Gone: nobody has it.
	Gone
	// Other: somebody else has it.
	Other
)

// A Farewell is the answer to Release.
type Farewell struct {
	Verdict Verdict
	// Heard is how many subscriptions the message reached, those of this process
	// included. It may be too low, for the store does not know of those that listen
	// elsewhere, and negative if it is not known at all.
	Heard int
}

// A Listener is told of signals, one at a time; it does not block.
type Listener interface{ Notify(s Signal) }

// A Signal says why a waiter is to look.
type Signal uint8

const (
	// Message: a release was announced.
	Message Signal = iota
	// Look: announcements may have been missed.
	Look
)
