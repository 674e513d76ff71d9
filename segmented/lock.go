package segmented

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/reentrant"
	"github.com/holdfast-go/holdfast/scripts"
)

const (
	defaultSegments = 64
	maxSegments     = 1024
)

// Options tune a striped lock: those of every lock, and the number of segments.
type Options struct {
	holdfast.Options

	// Segments is the number of locks that the keys share. Default 64, at most
	// 1024. Redis records it when the lock is first used, without a TTL; another
	// number is [holdfast.ErrOption] then, since a key would belong to one segment
	// here and to another there.
	Segments int
}

// A Lock is a striped lock: a fixed number of re-entrant locks, its segments, of
// which each key belongs to one. Two keys can share a segment, and then exclude
// each other. It may be used from many goroutines.
//
// Every method that takes a segment reports [holdfast.ErrOption] if Redis has
// recorded another number of segments.
type Lock struct {
	session  *holdfast.Session
	given    string // the name given to New
	name     string
	options  holdfast.Options
	gate     *core.Gate
	segments []*reentrant.Lock
	order    []int // the one in which segments are taken: by slot, then by name
	rank     []int // the place of each segment in it
}

// New returns the striped lock of that name. It asks Redis nothing.
//
// Errors: [holdfast.ErrName] for a name that is empty, too long, or has a brace
// (also in the session's prefix): a hash tag would put all segments into one
// slot; [holdfast.ErrOption]; [holdfast.ErrClosed].
func New(s *holdfast.Session, name string, o Options) (*Lock, error) {
	n := cmp.Or(o.Segments, defaultSegments)
	if n < 1 || n > maxSegments {
		return nil, fmt.Errorf("segmented: lock %q: %w: Segments is %d, from 1 to %d", name, holdfast.ErrOption, n, maxSegments)
	}
	if name == "" {
		return nil, fmt.Errorf("segmented: %w", core.CheckName(name))
	}
	if o.Class == "" {
		o.Class = name
	}
	l := &Lock{session: s, given: name, options: o.Options}
	l.gate = core.NewGate(func(ctx context.Context, env *core.Env) error { return l.count(ctx, env, n) })
	parent, err := l.parent(o.Options)
	if err != nil {
		return nil, fmt.Errorf("segmented: %w", err)
	}
	l.name = strings.TrimSuffix(parent.Name(), segmentSuffix)
	if strings.ContainsAny(l.name, "{}") {
		return nil, fmt.Errorf("segmented: %w: %q has a brace: a hash tag would put all segments into one slot", holdfast.ErrName, l.name)
	}
	l.segments, l.order, l.rank = make([]*reentrant.Lock, n), make([]int, n), make([]int, n)
	for i := range l.segments {
		l.segments[i], l.order[i] = parent.For(strconv.Itoa(i)), i
	}
	if longest := l.segments[n-1].Name(); len(longest) > core.MaxName {
		return nil, fmt.Errorf("segmented: %w", core.CheckName(longest))
	}
	slices.SortFunc(l.order, func(a, b int) int {
		one, two := l.segments[a].Name(), l.segments[b].Name()
		return cmp.Or(cmp.Compare(core.Slot(one), core.Slot(two)), cmp.Compare(one, two))
	})
	for place, i := range l.order {
		l.rank[i] = place
	}
	return l, nil
}

// segmentSuffix stands between the name of the lock and the number of a segment.
const segmentSuffix = ":segment"

func (l *Lock) parent(o holdfast.Options) (*reentrant.Lock, error) {
	return reentrant.Gated(l.session, l.given+segmentSuffix, o, l.gate)
}

// count records the number of segments, or compares it with the one recorded.
func (l *Lock) count(ctx context.Context, env *core.Env, n int) error {
	key := core.Prefixed("holdfast_segments", l.name)
	recorded, err := scripts.SegmentedCount.Exec(ctx, env.Client, []string{key}, []string{strconv.Itoa(n)}).ToString()
	if err != nil {
		return core.Fail(err)
	}
	if recorded != strconv.Itoa(n) {
		return &fault.Failure{Class: fault.Fatal, Err: fmt.Errorf(
			"%w: Segments is %d, and the lock was first used with %s (recorded in %s)", fault.ErrOption, n, recorded, key)}
	}
	return nil
}

// Name is the lock's full name, prefix included.
func (l *Lock) Name() string { return l.name }

// Segments is the number of segments.
func (l *Lock) Segments() int { return len(l.segments) }

// Segment is the number of the segment that key belongs to: [Hash] of the key,
// modulo the number of segments.
func (l *Lock) Segment(key string) int { return int(Hash(key) % uint64(len(l.segments))) }

// For returns the lock of the segment that key belongs to. It does no I/O and has
// no error: an empty key is reported, as [holdfast.ErrName], by the call that uses
// it.
//
// Code that holds the lock of one key and takes that of another can deadlock with
// code that does it the other way round, and two keys of one segment that are
// taken under unrelated contexts wait for each other. Take the locks of several
// keys with [Lock.LockKeys].
func (l *Lock) For(key string) *reentrant.Lock {
	if key == "" {
		return l.segments[0].For("")
	}
	return l.segments[l.Segment(key)]
}

// LockKeys takes the locks of all the keys and returns the context to work under
// and the joint lease to unlock. It waits for one segment after the other, in the
// same order in every process, holding those it has, so that callers do not
// deadlock. If one cannot be had all are released. Segments that ctx was made
// under a lease of are re-entered.
//
// ctx bounds the wait, and so does [holdfast.Options.Wait], which is for all of
// them together. Errors: as of [reentrant.Lock.Lock]; [holdfast.ErrLost] if a
// segment was lost while the next was waited for; [holdfast.ErrOption] without
// keys; [holdfast.ErrName] for an empty key.
func (l *Lock) LockKeys(ctx context.Context, keys ...string) (context.Context, *Joint, error) {
	if len(keys) == 0 {
		return ctx, nil, fmt.Errorf("segmented: lock keys of %q: %w: there are none", l.name, holdfast.ErrOption)
	}
	var segments []int
	for _, key := range keys {
		if key == "" {
			return ctx, nil, fmt.Errorf("segmented: lock keys of %q: %w: one is empty", l.name, holdfast.ErrName)
		}
		segments = append(segments, l.Segment(key))
	}
	slices.SortFunc(segments, func(a, b int) int { return cmp.Compare(l.rank[a], l.rank[b]) })
	return l.take(ctx, slices.Compact(segments))
}

// LockAll takes all segments, so that nobody holds any key: for work that needs
// the whole. It is as [Lock.LockKeys] of all keys there are, and takes a round
// trip for each segment.
func (l *Lock) LockAll(ctx context.Context) (context.Context, *Joint, error) {
	return l.take(ctx, l.order)
}

// take takes segments, which are in order.
func (l *Lock) take(ctx context.Context, segments []int) (context.Context, *Joint, error) {
	began := time.Now()
	joint, inner := &Joint{cancel: func(error) {}}, ctx
	for _, i := range segments {
		segment, err := l.within(i, began)
		var lease *holdfast.Lease
		if err == nil {
			var next context.Context
			if next, lease, err = segment.Lock(inner); err == nil {
				inner = next //nolint:fatcontext // each part is held under the one before, so that the last context ends with any of them
			}
		}
		if err != nil {
			if cause := context.Cause(inner); ctx.Err() == nil && errors.Is(cause, holdfast.ErrLost) {
				err = cause // it is not this segment that could not be had
			}
			_ = joint.Unlock(ctx)
			return ctx, nil, err
		}
		joint.parts = append(joint.parts, lease)
	}
	joint.ctx, joint.cancel = context.WithCancelCause(inner)
	return joint.ctx, joint, nil
}

// within returns segment i for a call that began then: with what is left of Wait.
func (l *Lock) within(i int, began time.Time) (*reentrant.Lock, error) {
	if l.options.Wait <= 0 {
		return l.segments[i], nil
	}
	o := l.options
	if o.Wait -= time.Since(began); o.Wait <= 0 {
		o.Wait = -1
	}
	parent, err := l.parent(o)
	if err != nil {
		return nil, err
	}
	return parent.For(strconv.Itoa(i)), nil
}

// LockAny takes one segment that is free, whichever, and returns its number too.
// If none is free it waits for the first to become so. It serves where the
// segments are interchangeable: one of n workers' places, one of n partitions.
// Under a context that holds a segment of this lock it re-enters that one.
//
// ctx and [holdfast.Options.Wait] bound the wait. While it waits it subscribes to
// every segment. Errors: as of [reentrant.Lock.Lock]; [holdfast.ErrNotAcquired]
// only if every segment was taken.
func (l *Lock) LockAny(ctx context.Context) (context.Context, *holdfast.Lease, int, error) {
	for i, segment := range l.segments {
		if segment.Held(ctx) != nil {
			held, lease, err := segment.Lock(ctx)
			return held, lease, i, err
		}
	}
	began := time.Now()
	first := rand.IntN(len(l.segments)) // or all would begin with the same one
	var failed error
	for n := range l.segments {
		i := (first + n) % len(l.segments)
		held, lease, err := l.segments[i].TryLock(ctx)
		switch {
		case err == nil:
			return held, lease, i, nil
		case errors.Is(err, holdfast.ErrOption), errors.Is(err, holdfast.ErrClosed), ctx.Err() != nil:
			return ctx, nil, -1, err
		case l.options.Wait >= 0 && errors.Is(err, holdfast.ErrUnavailable):
			// Nor are the others to be had now, probably: wait for all of them at once.
			return l.any(ctx, began)
		}
		failed = worse(failed, err)
	}
	if l.options.Wait < 0 {
		return ctx, nil, -1, failed
	}
	return l.any(ctx, began)
}

// any waits for all segments at once.
func (l *Lock) any(ctx context.Context, began time.Time) (context.Context, *holdfast.Lease, int, error) {
	type grant struct {
		ctx   context.Context
		lease *holdfast.Lease
		i     int
		err   error
	}
	grants := make(chan grant, len(l.segments))
	cancels := make([]context.CancelFunc, len(l.segments))
	for i := range l.segments {
		// Each waits under a context of its own: a lease ends with the context that it
		// was taken with, so the winner's must stay.
		waiting, cancel := context.WithCancel(ctx)
		cancels[i] = cancel
		go func() {
			segment, err := l.within(i, began)
			g := grant{ctx: ctx, i: i, err: err}
			if err == nil {
				g.ctx, g.lease, g.err = segment.Lock(waiting)
			}
			grants <- g
		}()
	}
	var won *grant
	var failed error
	for range l.segments {
		g := <-grants
		switch {
		case g.err != nil:
			failed = worse(failed, g.err)
			cancels[g.i]()
		case won == nil:
			won = &g
			for i, cancel := range cancels {
				if i != g.i {
					cancel()
				}
			}
		default: // two were granted at once
			_ = g.lease.Unlock(ctx)
			cancels[g.i]()
		}
	}
	if won == nil {
		return ctx, nil, -1, failed
	}
	context.AfterFunc(won.ctx, cancels[won.i])
	return won.ctx, won.lease, won.i, nil
}

// worse is the error of two that says less of the lock: that a segment is taken
// counts only if all are.
func worse(a, b error) error {
	if a == nil || errors.Is(a, holdfast.ErrNotAcquired) && !errors.Is(b, holdfast.ErrNotAcquired) {
		return b
	}
	return a
}
