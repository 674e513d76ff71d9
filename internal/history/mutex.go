package history

import (
	"cmp"
	"slices"
	"time"
)

// Mutex is the model of an exclusive lock that is re-entered by its owner:
//
//   - it is granted only while no other hold is in place, and with tokens, to ever
//     larger ones;
//   - it is re-entered, and given back, by its holder only, and every count that is
//     told is the right one;
//   - a hold that was lost ends between the last moment at which its lease was seen
//     valid and the moment at which the loss was known;
//   - it is refused only while it is taken, or where there is an excuse: its session
//     queues for it, or does not know yet that it was removed by force, or see Taken.
type Mutex struct {
	// Taken tells whether the server's record has the lock taken at some moment of
	// an interval. It excuses refusals for which the history shows no holder, since
	// attempts whose callers have left can have the lock too, and the server keeps
	// what was lost to the end of its lease. Without it every such attempt and loss
	// excuses all refusals after it.
	Taken func(name string, from, to int64) bool
}

// mutexState is the state of a Mutex. Of those who lost the lock by force, and
// need not know of it yet, the last few are remembered.
type mutexState struct {
	Hold   string
	Owner  string
	Count  int
	Last   uint64 // token
	Forced [4]string
}

// untoldFor is how long after a loss was noticed its session may still refuse
// without asking: contexts end first.
const untoldFor = 10 * time.Millisecond

// Prepare implements Model.
func (m Mutex) Prepare(ops []Op) []Op {
	var out []Op
	type life struct {
		grant           *Op
		validAt, lostAt int64
		end             int64 // of the last Unlock
		lost, over      bool
	}
	lives := map[string]*life{}
	for i := range ops {
		op := &ops[i]
		if op.Hold == "" {
			continue
		}
		l := lives[op.Hold]
		if l == nil {
			l = &life{lostAt: Never}
			lives[op.Hold] = l
		}
		if op.Outcome == Done && (op.Verb == Lock || op.Verb == TryLock) {
			l.grant = op
		}
		l.validAt = max(l.validAt, op.ValidAt)
		if op.Outcome == Lost {
			l.lost, l.lostAt = true, min(l.lostAt, op.LostAt, op.Return)
		}
		if op.Verb == Unlock {
			l.end = max(l.end, op.Return)
		}
		l.over = l.over || op.Verb == Unlock && op.Count == 0 && op.Outcome != Lost
	}
	holds := map[string][]span{}
	for _, l := range lives {
		switch {
		case l.grant == nil:
		case l.lost:
			holds[l.grant.Session] = append(holds[l.grant.Session], span{l.grant.Call, l.lostAt + int64(untoldFor), 0})
		case l.over:
			holds[l.grant.Session] = append(holds[l.grant.Session], span{l.grant.Call, l.end, 0})
		}
	}
	excuse := m.excuses(ops, holds)
	for i := range ops {
		op := ops[i]
		switch {
		case op.Outcome == Lost, op.Outcome == Unknown && op.Verb != Unlock && op.Verb != Force:
			continue
		case op.Verb == Unlock && op.Outcome == Unknown && op.Count == 0, op.Verb == Force && op.Outcome == Unknown:
			op.Return = Never
		case op.Verb == Force && op.Outcome == Refused:
			continue
		case op.Outcome == Refused:
			op.Excuse = excuse(&op)
		}
		out = append(out, op)
	}
	for id, l := range lives {
		if l.grant == nil || l.over && !l.lost {
			continue
		}
		loss := *l.grant
		loss.Verb, loss.Outcome, loss.Hold, loss.Count, loss.Handoff = Loss, Lost, id, 0, false
		loss.Call = max(l.validAt, l.grant.Call)
		loss.Return = max(l.lostAt, loss.Call) // without a report, some time
		out = append(out, loss)
	}
	byCall(out)
	return out
}

// excuses returns what finds the excuse of a refusal. The holds are those of each
// session, for as long as it believes in them.
func (m Mutex) excuses(ops []Op, holds map[string][]span) func(*Op) string {
	waits := map[string][]span{}
	firstGhost := int64(Never)
	for i := range ops {
		op := &ops[i]
		if op.Verb == Lock || op.Verb == TryLock {
			waits[op.Session] = append(waits[op.Session], span{op.Call, op.Return, op.Client})
		}
		if op.Ghost || op.Outcome == Lost { // the server lets go of what was lost a little later
			firstGhost = min(firstGhost, op.Call)
		}
	}
	queues, beliefs := map[string]spans{}, map[string]spans{}
	for session, all := range waits {
		queues[session] = index(all)
	}
	for session, all := range holds {
		beliefs[session] = index(all)
	}
	return func(op *Op) string {
		switch {
		case queues[op.Session].meet(op):
			return "its session queues"
		case beliefs[op.Session].meet(op):
			return "its session has it"
		case m.Taken != nil && m.Taken(op.Name, op.Call, op.Return):
			return "the server has it taken"
		case m.Taken == nil && firstGhost <= op.Return:
			return "an attempt of unknown outcome"
		}
		return ""
	}
}

// A span is a time in which a client did something; 0 is none of them.
type span struct {
	from, to int64
	client   int
}

// spans are sorted by from.
type spans struct {
	all  []span
	upto []int64 // the latest end of that span and those before it
}

func index(all []span) spans {
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	s := spans{all: all}
	last := int64(0)
	for _, v := range all {
		last = max(last, v.to)
		s.upto = append(s.upto, last)
	}
	return s
}

// meet reports whether a span of somebody else has a moment in common with op.
func (s spans) meet(op *Op) bool {
	i, _ := slices.BinarySearchFunc(s.all, op.Return, func(v span, at int64) int { return cmp.Compare(v.from, at+1) })
	for i--; i >= 0 && s.upto[i] >= op.Call; i-- {
		if v := s.all[i]; v.client != op.Client && v.to >= op.Call {
			return true
		}
	}
	return false
}

// Init implements Model.
func (Mutex) Init() any { return mutexState{} }

// Step implements Model.
func (Mutex) Step(state any, op *Op) (any, bool) {
	s := state.(mutexState)
	forced := op.Owner != "" && slices.Contains(s.Forced[:], op.Owner)
	switch op.Verb {
	case Lock, TryLock:
		switch {
		case op.Outcome == Refused:
			return s, s.Hold != "" || op.Excuse != ""
		case forced && op.Handoff: // between goroutines that do not know yet
			return s, true
		case s.Hold != "", op.Token != 0 && op.Token <= s.Last:
			return s, false
		}
		s.Hold, s.Owner, s.Count, s.Last = op.Hold, op.Owner, 1, max(s.Last, op.Token)
		return s, op.Count == 1
	case Nested:
		if forced {
			return s, true
		}
		s.Count++
		return s, s.Hold == op.Hold && s.Count == op.Count && (op.Token == 0 || op.Token == s.Last)
	case Unlock:
		if forced {
			return s, true
		}
		ok := s.Hold == op.Hold && s.Count-1 == op.Count
		if s.Count--; s.Count <= 0 {
			s.Hold, s.Owner, s.Count = "", "", 0
		}
		return s, ok
	case Loss:
		if forced {
			return s, true
		}
		ok := s.Hold == op.Hold
		s.Hold, s.Owner, s.Count = "", "", 0
		return s, ok
	case Force:
		if s.Owner != "" {
			copy(s.Forced[1:], s.Forced[:])
			s.Forced[0] = s.Owner
		}
		s.Hold, s.Owner, s.Count = "", "", 0
		return s, true
	default:
		return s, false
	}
}
