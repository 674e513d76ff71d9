package history

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast"
)

// A Locker is a lock that can be recorded.
type Locker interface {
	holdfast.Locker
	Name() string
}

// A Recorder has the history of one process.
type Recorder struct {
	n     atomic.Int64
	holds atomic.Int64

	mu      sync.Mutex
	clients []*Client
}

// Client returns a client whose calls are recorded. The session is that of its
// locks, which has to have [Observer] as its observer.
func (r *Recorder) Client(session string) *Client {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &Client{recorder: r, session: session, id: len(r.clients) + 1}
	r.clients = append(r.clients, c)
	return c
}

// Len is the number of operations recorded so far.
func (r *Recorder) Len() int { return int(r.n.Load()) }

// Ops returns the operations in the order of their calls. No client may be at
// work.
func (r *Recorder) Ops() []Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ops []Op
	for _, c := range r.clients {
		ops = append(ops, c.ops...)
	}
	byCall(ops)
	return ops
}

func byCall(ops []Op) {
	slices.SortStableFunc(ops, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
}

// A Client makes calls, one after the other, and records them.
type Client struct {
	recorder *Recorder
	session  string
	id       int
	ops      []Op
}

// Held is a lease that was recorded.
type Held struct {
	*holdfast.Lease
	hold *hold
	side string
}

// hold is what the leases of one root hold share.
type hold struct {
	id      string
	validAt atomic.Int64
	until   atomic.Int64
}

// holdKey finds in a context the hold of a lock of that name that it was made
// under.
type holdKey string

// sideOf is the side of a lock that has sides, and else empty.
func sideOf(l Locker) string {
	if s, ok := l.(interface{ Side() string }); ok {
		return s.Side()
	}
	return ""
}

// seen is filled in by the observer: what the library says of one call.
type seen struct {
	told    bool
	holds   int
	handoff bool
}

type seenKey struct{}

// Observer returns the observer of sessions that are recorded.
func Observer() holdfast.Observer {
	return holdfast.Observer{
		Acquired: func(ctx context.Context, e holdfast.Acquired) {
			if s, ok := ctx.Value(seenKey{}).(*seen); ok {
				s.told, s.holds, s.handoff = true, e.Holds, e.Handoff
			}
		},
		Released: func(ctx context.Context, e holdfast.Released) {
			if s, ok := ctx.Value(seenKey{}).(*seen); ok {
				s.told, s.holds = true, e.Holds
			}
		},
	}
}

// Lock calls and records Lock.
func (c *Client) Lock(ctx context.Context, l Locker) (context.Context, *Held, error) {
	return c.take(ctx, l, Lock, l.Lock)
}

// TryLock calls and records TryLock.
func (c *Client) TryLock(ctx context.Context, l Locker) (context.Context, *Held, error) {
	return c.take(ctx, l, TryLock, l.TryLock)
}

func (c *Client) take(ctx context.Context, l Locker, verb Verb,
	call func(context.Context) (context.Context, *holdfast.Lease, error),
) (context.Context, *Held, error) {
	s := &seen{}
	op := Op{Name: l.Name(), Session: c.session, Client: c.id, Verb: verb, Side: sideOf(l), Call: Now()}
	key := holdKey(op.Name + op.Side)
	held, lease, err := call(context.WithValue(ctx, seenKey{}, s))
	op.Return = Now()
	if err != nil {
		op.Err = err.Error()
		var lost *holdfast.LostError
		switch {
		case errors.As(err, &lost):
			op.Verb, op.Outcome, op.LostAt = Nested, Lost, At(lost.At)
			if h, ok := ctx.Value(key).(*hold); ok {
				op.Hold = h.id
			}
		case errors.Is(err, holdfast.ErrNotAcquired):
			// A TryLock that is refused is refused; a Lock may have left an attempt.
			op.Outcome, op.Ghost = Refused, verb == Lock
		case errors.Is(err, holdfast.ErrUnavailable), errors.Is(err, holdfast.ErrClosed):
			op.Outcome, op.Ghost = Unknown, true
		default:
			op.Outcome = Failed
		}
		c.Record(op)
		return ctx, nil, err
	}
	if !s.told {
		panic("history: the session does not have history.Observer")
	}
	op.Outcome, op.Owner, op.Token, op.Count, op.Handoff = Done, lease.Owner(), lease.Token(), s.holds, s.handoff
	h, _ := ctx.Value(key).(*hold)
	if s.holds > 1 {
		op.Verb = Nested
	} else {
		if outer, ok := ctx.Value(holdKey(op.Name + WriteSide)).(*hold); ok && op.Side == ReadSide {
			op.Under = outer.id
		}
		h = c.newHold(lease)
		held = context.WithValue(held, key, h)
	}
	op.Hold = h.id
	lent := &Held{Lease: lease, hold: h, side: op.Side}
	lent.Check()
	op.ValidAt, op.Until = h.validAt.Load(), h.until.Load()
	c.Record(op)
	return held, lent, nil
}

func (c *Client) newHold(lease *holdfast.Lease) *hold {
	return &hold{id: lease.Owner() + "#" + strconv.FormatInt(c.recorder.holds.Add(1), 10)}
}

// Check reports whether the lease is valid, and notes it: a loss that is told
// later then came after this moment.
func (h *Held) Check() bool {
	before := Now()
	rest := h.Remaining()
	if rest <= 0 {
		return false
	}
	raise(&h.hold.validAt, before)
	raise(&h.hold.until, before+int64(rest)) // or later
	return true
}

func raise(v *atomic.Int64, to int64) {
	for old := v.Load(); to > old && !v.CompareAndSwap(old, to); {
		old = v.Load()
	}
}

// Unlock calls and records Unlock.
func (c *Client) Unlock(ctx context.Context, h *Held) error {
	s := &seen{}
	h.Check()
	op := Op{
		Name: h.Name(), Session: c.session, Client: c.id, Verb: Unlock, Side: h.side, Hold: h.hold.id, Owner: h.Owner(), Token: h.Token(),
		ValidAt: h.hold.validAt.Load(), Until: h.hold.until.Load(), Call: Now(),
	}
	err := h.Unlock(context.WithValue(ctx, seenKey{}, s))
	op.Return, op.Count = Now(), s.holds
	var lost *holdfast.LostError
	switch {
	case err == nil:
		op.Outcome = Done
	case errors.As(err, &lost):
		op.Outcome, op.LostAt = Lost, At(lost.At)
	case errors.Is(err, holdfast.ErrUnknown):
		op.Outcome = Unknown
	default:
		op.Outcome = Failed
	}
	if err != nil {
		op.Err = err.Error()
	}
	c.Record(op)
	return err
}

// Force calls and records ForceUnlock.
func (c *Client) Force(ctx context.Context, name string, force func(context.Context) (bool, error)) error {
	op := Op{Name: name, Session: c.session, Client: c.id, Verb: Force, Call: Now()}
	was, err := force(ctx)
	op.Return, op.Outcome = Now(), Done
	switch {
	case errors.Is(err, holdfast.ErrUnknown):
		op.Outcome = Unknown
	case errors.Is(err, holdfast.ErrUnavailable):
		op.Outcome = Refused // it was not executed
	case err != nil:
		op.Outcome = Failed
	case was:
		op.Count = 1
	}
	if err != nil {
		op.Err = err.Error()
	}
	c.Record(op)
	return err
}

// Record adds an operation that no other method makes.
func (c *Client) Record(op Op) {
	c.ops = append(c.ops, op)
	c.recorder.n.Add(1)
}
