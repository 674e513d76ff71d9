package rwlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast"
)

// ErrUpgrade: the caller reads, and wants to write. Two readers that did so would wait
// for each other for ever, so nobody may: unlock the read lease first, and look again
// after the write lock is taken whether what was read is still so; or take the write
// lock from the start, and downgrade.
var ErrUpgrade = errors.New("rwlock: a reader cannot become a writer")

// Options tune a read-write lock; see [holdfast.Options] for most of them. MinHold,
// Handoff, Fencing and TokenRetention concern writers alone.
type Options struct {
	holdfast.Options

	// ReadersFirst lets readers in whenever others read, however long a writer has
	// waited. Default: readers stand back for writers that wait. All handles of a name
	// should agree.
	ReadersFirst bool
}

// A Lock is a handle of one read-write lock; it costs nothing in Redis. Its two sides
// are what is taken. It may be used from many goroutines, each of which is a caller of
// its own.
//
// Source: Redisson's RedissonReadWriteLock. Differs: owners are holds, not threads;
// readers stand back for writers that wait, and writers let readers go first that
// waited for the one before; dead readers are looked for; a read unlock costs the same
// however many read; [Writer.Downgrade].
type Lock struct {
	reader Reader
	writer Writer
}

// New returns the read-write lock of that name, with the session's prefix before it.
// It asks Redis nothing.
//
// Errors: [holdfast.ErrName] for a name that is empty, longer than 512 bytes or whose
// keys could lie in different slots of a cluster; [holdfast.ErrOption];
// [holdfast.ErrClosed].
func New(s *holdfast.Session, name string, o Options) (*Lock, error) {
	write, err := s.Bind(writeKind{o.ReadersFirst}, name, o.Options)
	if err != nil {
		return nil, err
	}
	reading := o.Options // what concerns writers is not used
	reading.MinHold, reading.Handoff, reading.Fencing, reading.TokenRetention = 0, 0, false, 0
	read, err := s.Bind(readKind{o.ReadersFirst}, name, reading)
	if err != nil {
		return nil, err
	}
	return newLock(read, write), nil
}

func newLock(read, write *holdfast.Handle) *Lock {
	return &Lock{reader: Reader{read, write}, writer: Writer{read, write}}
}

// For returns the lock name:id with the same options. It does no I/O and has no
// error: a bad id is reported, as [holdfast.ErrName], by the call that uses it.
func (l *Lock) For(id string) *Lock {
	return newLock(l.reader.read.For(id), l.reader.write.For(id))
}

// Name is the lock's full name, prefix and id included.
func (l *Lock) Name() string { return l.reader.Name() }

// Reader is the side that many hold at once, while nobody writes.
func (l *Lock) Reader() *Reader { return &l.reader }

// Writer is the side that one holds, while nobody reads.
func (l *Lock) Writer() *Writer { return &l.writer }

// Reader is the read side of a [Lock].
type Reader struct{ read, write *holdfast.Handle }

// Writer is the write side of a [Lock].
type Writer struct{ read, write *holdfast.Handle }

var (
	_ holdfast.Locker = (*Reader)(nil)
	_ holdfast.Locker = (*Writer)(nil)
)

// Name is the lock's full name, prefix and id included.
func (r *Reader) Name() string { return r.read.Name() }

// Lock waits until it may read, then returns the context to work under and the lease
// to unlock, as [holdfast.Locker] has it:
//
//	ctx, lease, err := lock.Reader().Lock(ctx)
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//
// The context ends with the caller's, at the loss of the lock, or at Unlock. If ctx was
// made under a read lease of this lock that is still held, Lock takes a nested hold of
// it, without asking Redis. If it was made under a write lease, it reads as a part of
// that: at once, and with a context that ends when the writer unlocks. The read lease
// then stays held until it is unlocked too, and keeps other writers out.
//
// Callers of one process that wait together, with equal options and a watchdog, enter
// together with one command, as one owner in Redis: their leases have one owner, and
// are lost together; all else each has for itself.
//
// A reader stands back while a writer waits, unless it waited already when the last
// writer left. So a reader that, while it holds the lock, waits for another one to take
// it may wait behind a writer that waits for itself: take it once for both, or pass the
// context on.
//
// ctx bounds the wait, and so does [holdfast.Options.Wait]; neither bounds the lease.
// After ctx has ended the lock stays held, and renewed, for [holdfast.Options.Grace].
// Failures that usually pass are ridden out as long as ctx and Wait allow.
//
// The lease has no fencing token.
//
// Errors: [holdfast.ErrNotAcquired], [holdfast.ErrUnavailable],
// [holdfast.ErrWrongType], [holdfast.ErrClosed], [holdfast.ErrName];
// [holdfast.ErrOption] if a nested hold asks for more than its root has;
// [holdfast.ErrLost] if the write lease is lost that it was to be a part of. In every
// case nothing stays behind in Redis.
func (r *Reader) Lock(ctx context.Context) (context.Context, *holdfast.Lease, error) {
	if outer := r.outer(ctx); outer != nil {
		return r.read.LockUnder(ctx, outer, false)
	}
	return r.read.Lock(ctx)
}

// TryLock reads if it may do so at once. It answers within the session's Timeout, and
// without asking Redis when this process queues for the read side. Otherwise it is as
// [Reader.Lock].
func (r *Reader) TryLock(ctx context.Context) (context.Context, *holdfast.Lease, error) {
	if outer := r.outer(ctx); outer != nil {
		return r.read.LockUnder(ctx, outer, true)
	}
	return r.read.TryLock(ctx)
}

// outer is the write lease that a read with ctx is a part of, nil if there is none.
func (r *Reader) outer(ctx context.Context) *holdfast.Lease {
	if r.read.Held(ctx) != nil {
		return nil
	}
	return r.write.Held(ctx)
}

// Do takes the lock as [Reader.Lock] does, calls work with the lease's context, and
// unlocks, also when work panics.
//
// Before the work, the error is Lock's and work is not called. After it, the error is
// the work's, joined with a [*holdfast.LostError] if the lock was lost before the work
// returned. A release that stays unconfirmed is no error: the work is done, and the
// lease runs out.
func (r *Reader) Do(ctx context.Context, work func(context.Context) error) error {
	return r.read.DoWith(ctx, r.Lock, work)
}

// Held returns the read lease of this lock that ctx was made under, nil if there is
// none or it is no longer held.
func (r *Reader) Held(ctx context.Context) *holdfast.Lease { return r.read.Held(ctx) }

// Info reads who holds the lock, in either mode, in one command. A reader that died may
// be among them until somebody who waits has found out. Errors:
// [holdfast.ErrUnavailable], [holdfast.ErrWrongType], [holdfast.ErrName].
func (r *Reader) Info(ctx context.Context) (holdfast.Info, error) { return r.read.Info(ctx) }

// ForceUnlock takes the lock away from all its readers, wakes the waiters, and reports
// whether there were any; it leaves a writer alone. Readers of this session learn of it
// at once, others at their next renewal; until then they may read beside a writer, so it
// is for operators.
//
// Errors: [holdfast.ErrUnavailable], [holdfast.ErrUnknown], [holdfast.ErrWrongType],
// [holdfast.ErrName].
func (r *Reader) ForceUnlock(ctx context.Context) (bool, error) { return r.read.ForceUnlock(ctx) }

// Name is the lock's full name, prefix and id included.
func (w *Writer) Name() string { return w.write.Name() }

// Lock waits until nobody else holds either side, then returns the context to work
// under and the lease to unlock:
//
//	ctx, lease, err := lock.Writer().Lock(ctx)
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//
// The context ends with the caller's, at the loss of the lock, or at Unlock. If ctx was
// made under a write lease of this lock that is still held, Lock takes a nested hold of
// it. If it was made under a read lease only, the answer is [ErrUpgrade], at once.
//
// Between processes writers have no order. Between goroutines of one process the lock
// is handed over without asking Redis, at most [holdfast.Options.Handoff] times in a row
// and for 5 ms, and not while goroutines of this process wait to read. After a writer
// readers enter first that have waited for it.
//
// ctx bounds the wait, and so does [holdfast.Options.Wait]; neither bounds the lease.
// After ctx has ended the lock stays held, and renewed, for [holdfast.Options.Grace].
// Failures that usually pass are ridden out as long as ctx and Wait allow.
//
// Errors: [ErrUpgrade], [holdfast.ErrNotAcquired], [holdfast.ErrUnavailable],
// [holdfast.ErrWrongType], [holdfast.ErrClosed], [holdfast.ErrName];
// [holdfast.ErrOption] if a nested hold asks for more than its root has;
// [holdfast.ErrLost] if a nested hold finds the lock lost. In every case nothing stays
// behind in Redis.
func (w *Writer) Lock(ctx context.Context) (context.Context, *holdfast.Lease, error) {
	if err := w.upgrade(ctx); err != nil {
		return ctx, nil, err
	}
	return w.write.Lock(ctx)
}

// TryLock takes the lock if nobody else holds either side. It answers within the
// session's Timeout, and without asking Redis when this process holds the write side or
// queues for it. Otherwise it is as [Writer.Lock].
func (w *Writer) TryLock(ctx context.Context) (context.Context, *holdfast.Lease, error) {
	if err := w.upgrade(ctx); err != nil {
		return ctx, nil, err
	}
	return w.write.TryLock(ctx)
}

// upgrade is ErrUpgrade if ctx was made under a read lease and no write lease.
func (w *Writer) upgrade(ctx context.Context) error {
	if w.write.Held(ctx) == nil && w.read.Held(ctx) != nil {
		return fmt.Errorf("%w: lock %q", ErrUpgrade, w.Name())
	}
	return nil
}

// Do takes the lock as [Writer.Lock] does, calls work with the lease's context, and
// unlocks, also when work panics.
//
// Before the work, the error is Lock's and work is not called. After it, the error is
// the work's, joined with a [*holdfast.LostError] if the lock was lost before the work
// returned. A release that stays unconfirmed is no error: the work is done, and the
// lease runs out. If a fence guards what the work wrote, its verdict is the one that
// counts: do not repeat a write that passed because the lock was lost a moment later.
func (w *Writer) Do(ctx context.Context, work func(context.Context) error) error {
	return w.write.DoWith(ctx, w.Lock, work)
}

// Downgrade makes lease, a write lease of this lock, a read lease, in one step: other
// readers come in, and no writer does in between. lease is then as unlocked, and its
// context has ended; the new one descends from the context that lease was taken with:
//
//	held, writing, err := lock.Writer().Lock(ctx)
//	if err != nil {
//		return err
//	}
//	defer writing.Unlock(ctx) // after a downgrade it does nothing
//	…
//	held, reading, err := lock.Writer().Downgrade(ctx, writing)
//	if err != nil {
//		return err
//	}
//	defer reading.Unlock(ctx)
//
// If the hold has other leases, nested ones or the outer one, they go on writing, and
// this one alone is exchanged: others come in when the last of those is unlocked.
//
// Downgrade uses the values of ctx, not its cancellation, and answers within the
// session's Timeout or the rest of the lease, whichever is shorter. MinHold ends with
// the write lease. A lease without watchdog has its full length again.
//
// Errors: [holdfast.ErrOption] if lease is not of this lock's write side;
// [holdfast.ErrNotHeld] if it was unlocked before, and on nil; [holdfast.ErrLost];
// [holdfast.ErrUnavailable], [holdfast.ErrClosed]: then nothing is held any more, as
// after Unlock, and what is left in Redis is released in the background.
func (w *Writer) Downgrade(ctx context.Context, lease *holdfast.Lease) (context.Context, *holdfast.Lease, error) {
	return w.write.Convert(ctx, lease, w.read)
}

// Held returns the write lease of this lock that ctx was made under, nil if there is
// none or it is no longer held.
func (w *Writer) Held(ctx context.Context) *holdfast.Lease { return w.write.Held(ctx) }

// Info reads who holds the lock, in either mode; see [Reader.Info].
func (w *Writer) Info(ctx context.Context) (holdfast.Info, error) { return w.write.Info(ctx) }

// ForceUnlock takes the lock away from its writer, wakes the waiters, and reports
// whether there was one; it leaves readers alone. A writer of this session learns of it
// at once, others at their next renewal at the latest; until then two may believe that
// they hold it, so it is for operators. Fencing tokens keep rising.
//
// Errors: [holdfast.ErrUnavailable], [holdfast.ErrUnknown], [holdfast.ErrWrongType],
// [holdfast.ErrName].
func (w *Writer) ForceUnlock(ctx context.Context) (bool, error) { return w.write.ForceUnlock(ctx) }
