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
//     queues for it, or see Taken.
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

// untoldFor is how long after a loss was noticed the queue of its session may
// still refuse.
const untoldFor = 10 * time.Millisecond

// Prepare implements Model.
func (m Mutex) Prepare(ops []Op) []Op {
	var out []Op
	type life struct {
		grant           *Op
		validAt, lostAt int64
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
		l.over = l.over || op.Verb == Unlock && op.Count == 0 && op.Outcome != Lost
	}
	// A session that lost a lock and does not know it yet refuses without asking.
	untold := map[string][]*life{}
	for _, l := range lives {
		if l.grant != nil && l.lost {
			untold[l.grant.Session] = append(untold[l.grant.Session], l)
		}
	}
	excuse := m.excuses(ops)
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
			for _, l := range untold[op.Session] {
				if l.grant.Call <= op.Return && op.Call <= l.lostAt+int64(untoldFor) {
					op.Excuse = "its session has lost it and does not know"
				}
			}
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

// excuses returns what finds the excuse of a refusal.
func (m Mutex) excuses(ops []Op) func(*Op) string {
	waits := map[string][]*Op{} // the calls of each session, by call
	firstGhost := int64(Never)
	for i := range ops {
		op := &ops[i]
		if op.Verb == Lock || op.Verb == TryLock {
			waits[op.Session] = append(waits[op.Session], op)
		}
		if op.Ghost || op.Outcome == Lost { // the server lets go of what was lost a little later
			firstGhost = min(firstGhost, op.Call)
		}
	}
	ends := map[string][]int64{} // the latest return of the first calls
	for session, calls := range waits {
		last := int64(0)
		for _, op := range calls {
			last = max(last, op.Return)
			ends[session] = append(ends[session], last)
		}
	}
	// A session whose callers queue refuses at once.
	queued := func(op *Op) bool {
		calls := waits[op.Session]
		i, _ := slices.BinarySearchFunc(calls, op.Return, func(o *Op, at int64) int { return cmp.Compare(o.Call, at+1) })
		for i--; i >= 0 && ends[op.Session][i] >= op.Call; i-- {
			if o := calls[i]; o.Client != op.Client && o.Return >= op.Call {
				return true
			}
		}
		return false
	}
	return func(op *Op) string {
		switch {
		case queued(op):
			return "its session queues"
		case m.Taken != nil && m.Taken(op.Name, op.Call, op.Return):
			return "the server has it taken"
		case m.Taken == nil && firstGhost <= op.Return:
			return "an attempt of unknown outcome"
		}
		return ""
	}
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
