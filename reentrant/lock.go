package reentrant

import (
	"context"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/core"
)

// A Lock is a handle of one re-entrant lock; it costs nothing in Redis. It may
// be used from many goroutines, each of which is a caller of its own. Handles of
// one name share the queue of local waiters, and nothing else.
//
// Source: Redisson's RedissonLock and RedissonFencedLock. Differs: owners are
// holds, not threads; a nested acquire or a renewal never lowers the TTL; the
// token does not move on re-entry and never starts again.
type Lock struct {
	handle *holdfast.Handle
}

var _ holdfast.Locker = (*Lock)(nil)

// New returns the lock of that name, with the session's prefix before it. It asks
// Redis nothing.
//
// Errors: [holdfast.ErrName] for a name that is empty, longer than 512 bytes or
// whose keys could lie in different slots of a cluster; [holdfast.ErrOption];
// [holdfast.ErrClosed].
func New(s *holdfast.Session, name string, o holdfast.Options) (*Lock, error) {
	return Gated(s, name, o, nil)
}

// Gated is [New] for the packages of this module that are made of such locks:
// nobody else can make a gate.
func Gated(s *holdfast.Session, name string, o holdfast.Options, gate *core.Gate) (*Lock, error) {
	handle, err := s.Bind(kind{gate: gate}, name, o)
	if err != nil {
		return nil, err
	}
	return &Lock{handle: handle}, nil
}

// For returns the lock name:id with the same options. It does no I/O and has no
// error: a bad id is reported, as [holdfast.ErrName], by the call that uses it.
func (l *Lock) For(id string) *Lock { return &Lock{handle: l.handle.For(id)} }

// Name is the lock's full name, prefix and id included.
func (l *Lock) Name() string { return l.handle.Name() }

// Lock waits until the lock is taken, then returns the context to work under and
// the lease to unlock:
//
//	ctx, lease, err := lock.Lock(ctx)
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//
// The context ends with the caller's, at the loss of the lock, or at Unlock; what
// is called with it then fails as it does when any context ends, and
// context.Cause says which of the three it was. If ctx was made under a lease of
// this lock that is still held, Lock takes a nested hold of it. On error the
// context is the caller's own.
//
// ctx bounds the wait, and so does [holdfast.Options.Wait]; neither bounds the
// lease. After ctx has ended the lock stays held, and renewed, for
// [holdfast.Options.Grace]. Failures that usually pass are ridden out as long as
// ctx and Wait allow.
//
// Errors: [holdfast.ErrNotAcquired], [holdfast.ErrUnavailable],
// [holdfast.ErrWrongType], [holdfast.ErrClosed], [holdfast.ErrName];
// [holdfast.ErrOption] if a nested hold asks for more than its root has;
// [holdfast.ErrLost] if a nested hold finds the lock lost. In every case nothing
// stays behind in Redis.
func (l *Lock) Lock(ctx context.Context) (context.Context, *holdfast.Lease, error) {
	return l.handle.Lock(ctx)
}

// TryLock takes the lock if it is free. It answers within the session's Timeout,
// and without asking Redis when this process holds the lock or queues for it.
// Otherwise it is as [Lock.Lock].
func (l *Lock) TryLock(ctx context.Context) (context.Context, *holdfast.Lease, error) {
	return l.handle.TryLock(ctx)
}

// Do takes the lock as [Lock.Lock] does, calls work with the lease's context, and
// unlocks, also when work panics.
//
// Before the work, the error is Lock's and work is not called. After it, the
// error is the work's, joined with a [*holdfast.LostError] if the lock was lost
// before the work returned. A release that stays unconfirmed is no error: the
// work is done, and the lease runs out. If a fence guards what the work wrote,
// its verdict is the one that counts: do not repeat a write that passed because
// the lock was lost a moment later.
func (l *Lock) Do(ctx context.Context, work func(context.Context) error) error {
	return l.handle.Do(ctx, work)
}

// Held returns the lease of this lock that ctx was made under, nil if there is
// none or it is no longer held.
func (l *Lock) Held(ctx context.Context) *holdfast.Lease { return l.handle.Held(ctx) }

// Info reads who holds the lock, in one command. ctx bounds it, and so does the
// session's Timeout. Errors: [holdfast.ErrUnavailable], [holdfast.ErrWrongType],
// [holdfast.ErrName].
func (l *Lock) Info(ctx context.Context) (holdfast.Info, error) { return l.handle.Info(ctx) }

// ForceUnlock removes the lock, whoever holds it, wakes the waiters, and reports
// whether there was one. A holder of this session learns of it at once, others
// at their next renewal at the latest; until then two may believe that they hold
// it, so it is for operators. Fencing tokens keep rising.
//
// Errors: [holdfast.ErrUnavailable], [holdfast.ErrUnknown],
// [holdfast.ErrWrongType], [holdfast.ErrName].
func (l *Lock) ForceUnlock(ctx context.Context) (bool, error) { return l.handle.ForceUnlock(ctx) }
