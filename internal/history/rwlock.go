package history

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast"
)

// The sides of a read-write lock.
const (
	ReadSide  = "read"
	WriteSide = "write"
)

// The verbs of a read-write lock, beside those of every lock.
const (
	Upgrade   Verb = "Upgrade"   // a reader that asks to write
	Downgrade Verb = "Downgrade" // a writer that becomes a reader
)

// Side is one side of a lock, which says so.
type Side struct {
	Locker
	Which string
}

// Side is the side.
func (s Side) Side() string { return s.Which }

// Upgrade asks to write under a read lease, and records that it is refused.
func (c *Client) Upgrade(ctx context.Context, l Locker, reading *Held, refusal error) error {
	op := Op{
		Name: l.Name(), Session: c.session, Client: c.id, Verb: Upgrade, Side: ReadSide, Hold: reading.hold.id, Owner: reading.Owner(),
		Call: Now(), Outcome: Refused,
	}
	_, _, err := l.Lock(ctx)
	op.Return = Now()
	valid := reading.Check()
	op.ValidAt, op.Until = reading.hold.validAt.Load(), reading.hold.until.Load()
	switch {
	case !valid: // lost meanwhile, and then its caller is a stranger
		return nil
	case !errors.Is(err, refusal):
		op.Outcome = Failed
	}
	if err != nil {
		op.Err = err.Error()
	}
	c.Record(op)
	return nil
}

// Downgrade calls and records a downgrade of a write lease that is alone.
func (c *Client) Downgrade(ctx context.Context, writing *Held,
	call func(context.Context, *holdfast.Lease) (context.Context, *holdfast.Lease, error),
) (context.Context, *Held, error) {
	writing.Check()
	op := Op{
		Name: writing.Name(), Session: c.session, Client: c.id, Verb: Downgrade, Side: WriteSide, Hold: writing.hold.id, Owner: writing.Owner(),
		ValidAt: writing.hold.validAt.Load(), Until: writing.hold.until.Load(), Call: Now(),
	}
	held, lease, err := call(context.WithValue(ctx, seenKey{}, &seen{}), writing.Lease)
	op.Return = Now()
	var lost *holdfast.LostError
	switch {
	case errors.As(err, &lost):
		op.Outcome, op.LostAt = Lost, At(lost.At)
	case errors.Is(err, holdfast.ErrUnavailable):
		op.Outcome = Unknown
	case err != nil:
		op.Outcome = Failed
	}
	if err != nil {
		op.Err = err.Error()
		c.Record(op)
		return ctx, nil, err
	}
	h := c.newHold(lease)
	lent := &Held{Lease: lease, hold: h, side: ReadSide}
	lent.Check()
	op.Outcome, op.Next = Done, h.id
	c.Record(op)
	return context.WithValue(held, holdKey(op.Name+ReadSide), h), lent, nil
}

// RW is the model of a read-write lock:
//
//   - a writer is let in only while nobody reads or writes, with an ever larger token;
//   - a reader is let in only while nobody writes, unless it is the writer's own;
//   - each side is re-entered, and given back, by its holder only, and every count that
//     is told is the right one;
//   - a reader that asks to write is refused, and reads on;
//   - a writer becomes a reader with nobody in between;
//   - a hold that was lost ends between the last moment at which its lease was seen valid
//     and the moment at which the loss was known.
//
// Refusals are not judged: readers stand back for those who wait, and writers for
// readers that are about to come.
type RW struct{}

// rwState is the state of an RW. Readers are "hold=count", sorted.
type rwState struct {
	Writer  string
	Count   int
	Readers string
	Last    uint64 // token
}

// Prepare implements Model.
func (RW) Prepare(ops []Op) []Op {
	var out []Op
	type life struct {
		grant           Op
		validAt, lostAt int64
		granted, over   bool
		lost            bool
	}
	lives := map[string]*life{}
	of := func(hold string) *life {
		l := lives[hold]
		if l == nil {
			l = &life{lostAt: Never}
			lives[hold] = l
		}
		return l
	}
	for i := range ops {
		op := &ops[i]
		if op.Hold == "" {
			continue
		}
		l := of(op.Hold)
		switch {
		case op.Outcome == Done && (op.Verb == Lock || op.Verb == TryLock):
			l.grant, l.granted = *op, true
		case op.Outcome == Done && op.Verb == Downgrade:
			next := of(op.Next)
			next.grant, next.granted = *op, true
			next.grant.Side, next.grant.Hold = ReadSide, op.Next
		}
		l.validAt = max(l.validAt, op.ValidAt)
		if op.Outcome == Lost {
			l.lost, l.lostAt = true, min(l.lostAt, op.LostAt, op.Return)
		}
		l.over = l.over || op.Outcome != Lost && (op.Verb == Unlock && op.Count == 0 || op.Verb == Downgrade)
	}
	for i := range ops {
		op := ops[i]
		switch {
		case op.Outcome == Lost, op.Outcome == Refused && op.Verb != Upgrade, op.Outcome == Unknown && op.Verb != Unlock && op.Verb != Downgrade:
			continue
		case op.Outcome == Unknown && op.Verb == Downgrade: // it was given back, then or later
			op.Verb, op.Count, op.Return = Unlock, 0, Never
		case op.Outcome == Unknown && op.Count == 0:
			op.Return = Never
		}
		out = append(out, op)
	}
	for id, l := range lives {
		if !l.granted || l.over && !l.lost {
			continue
		}
		loss := l.grant
		loss.Verb, loss.Outcome, loss.Hold, loss.Count = Loss, Lost, id, 0
		loss.Call = max(l.validAt, l.grant.Call)
		loss.Return = max(l.lostAt, loss.Call)
		out = append(out, loss)
	}
	byCall(out)
	return out
}

// Init implements Model.
func (RW) Init() any { return rwState{} }

// count is the count of a reader, 0 if it does not read; with sets it.
func (s rwState) count(hold string) (n, at int, all []string) {
	if s.Readers != "" {
		all = strings.Split(s.Readers, " ")
	}
	at, _ = slices.BinarySearch(all, hold+"=")
	if at < len(all) && strings.HasPrefix(all[at], hold+"=") {
		n, _ = strconv.Atoi(all[at][len(hold)+1:])
	}
	return n, at, all
}

func (s rwState) with(hold string, n int) rwState {
	was, at, all := s.count(hold)
	switch {
	case was > 0 && n > 0:
		all[at] = hold + "=" + strconv.Itoa(n)
	case was > 0:
		all = slices.Delete(all, at, at+1)
	case n > 0:
		all = slices.Insert(all, at, hold+"="+strconv.Itoa(n))
	}
	s.Readers = strings.Join(all, " ")
	return s
}

// Step implements Model.
func (RW) Step(state any, op *Op) (any, bool) {
	s := state.(rwState)
	n, _, _ := s.count(op.Hold)
	reads := op.Side == ReadSide
	switch op.Verb {
	case Lock, TryLock:
		if reads {
			return s.with(op.Hold, 1), n == 0 && (s.Writer == "" || s.Writer == op.Under) && op.Count == 1
		}
		ok := s.Writer == "" && s.Readers == "" && op.Count == 1 && (op.Token == 0 || op.Token > s.Last)
		s.Writer, s.Count, s.Last = op.Hold, 1, max(s.Last, op.Token)
		return s, ok
	case Nested:
		if reads {
			return s.with(op.Hold, n+1), n > 0 && n+1 == op.Count
		}
		s.Count++
		return s, s.Writer == op.Hold && s.Count == op.Count && (op.Token == 0 || op.Token == s.Last)
	case Unlock, Loss:
		if reads {
			left := n - 1
			if op.Verb == Loss {
				left = 0
			}
			return s.with(op.Hold, left), n > 0 && left == op.Count
		}
		ok := s.Writer == op.Hold
		if s.Count--; op.Verb == Loss {
			s.Count = 0
		}
		ok = ok && s.Count == op.Count
		if s.Count <= 0 {
			s.Writer, s.Count = "", 0
		}
		return s, ok
	case Upgrade:
		return s, n > 0
	case Downgrade:
		ok := s.Writer == op.Hold && s.Count == 1
		s.Writer, s.Count = "", 0
		return s.with(op.Next, 1), ok
	default:
		return s, false
	}
}

// LiveRW returns the intervals of the holds in the history of read-write locks: that of
// a writer has the weight of all readers, and the reads of a writer, which are a part of
// its own time, are left out.
func LiveRW(ops []Op, weight int) []Interval {
	side, under := map[string]string{}, map[string]bool{}
	all := slices.Clone(ops)
	for i := range ops {
		op := ops[i]
		switch {
		case op.Verb == Downgrade && op.Outcome == Done: // the reader begins
			all = append(all, Op{Name: op.Name, Verb: Lock, Outcome: Done, Hold: op.Next, Owner: op.Owner, Call: op.Return, Return: op.Return, Until: op.Return})
		case op.Side == WriteSide && op.Hold != "":
			side[op.Hold] = WriteSide
		case op.Under != "":
			under[op.Hold] = true
		}
	}
	var live []Interval
	for _, v := range Live(all) {
		if under[v.Hold] {
			continue
		}
		if side[v.Hold] == WriteSide {
			v.Weight = weight
		}
		live = append(live, v)
	}
	return live
}
