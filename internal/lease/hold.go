package lease

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// State says how a hold stands.
type State uint8

// The states; see the package documentation.
const (
	Released State = iota
	Held
	Unsure
	Lost
)

// Terms are the options that holds live by. Waiters with equal terms may be
// handed each other's tenure.
type Terms struct {
	Lease   time.Duration
	Fixed   bool
	MaxHold time.Duration // 0: no limit
	Grace   time.Duration // negative: until Unlock
	MinHold time.Duration
	Handoff int // 0: never
	Fencing bool
	Variant any // what else a kind wants equal; comparable
}

// deadline is the end of a lease by this process' clock: counted from when the
// request was sent, so that a slow answer does not stretch it, less what clocks
// may differ by and what a timer may be late.
func (t *Terms) deadline(sent, lease time.Duration) time.Duration {
	return sent + lease - lease/100 - 2*time.Millisecond
}

// period is the time between renewals.
func (t *Terms) period() time.Duration { return t.Lease / 3 }

// A Tenure is the stay of one owner field in the store, over which ownership may
// pass through several holds. The keeper's mutex guards it.
type Tenure struct {
	owner string
	store Store
	terms *Terms
	lane  *lane
	queue *queue
	hold  *Hold // nil once the tenure has ended; the first of several if it is shared

	took     time.Duration // when the store granted it
	deadline time.Duration
	token    uint64 // the next to give out
	tokens   int32  // how many are left to give out
	passes   int32  // handovers so far

	renewAt  time.Duration
	dueSince time.Duration // when it was put on the lane's due list
	failure  error         // the last of
	failures int32         // failed renewals in a row
	index    int32         // in the keeper's heap, -1 outside
	tainted  bool          // a copy of the acquire may still arrive
	bound    bool          // other holds are parts of it, so it is not handed over
	swept    bool          // its owner is looked for once more after its loss
	due      bool
	renewing bool
	suspect  bool // a release was announced that this process did not send
	recheck  bool // and that was while a renewal was under way
}

// A Hold is one local owner of a lock, with all its nested leases.
type Hold struct {
	keeper  *Keeper
	request *Request
	tenure  *Tenure
	token   uint64
	granted time.Duration

	// The keeper's mutex guards what follows.
	sibling *Hold           // the next one of the tenure
	members *Member         // a list
	witness context.Context // the context of one of their callers: as a rule the only one that is asked
	endedAt time.Duration
	loss    *Loss
	stallAt time.Duration
	turn    chan struct{} // holds a token while the count is being set
	holds   int32
	state   State
	ended   bool // every caller's context has ended, since endedAt
	endTold bool // that it is held on after its context ended was reported
}

// A Member is one lease of a hold.
type Member struct {
	hold     *Hold
	caller   context.Context // the caller's context, whose end starts the grace
	cancel   context.CancelCauseFunc
	next     *Member
	released bool
}

// A Loss says why and when a hold was lost.
type Loss struct {
	Reason fault.Reason
	At     time.Time
	Err    error // the failure that led to it
	Cause  error // what contexts and calls are told
}

// Join makes m a lease of h: cancel is called with the cause when the lease
// ends. The hold counts m already.
func (h *Hold) Join(caller context.Context, m *Member, cancel context.CancelCauseFunc) {
	k := h.keeper
	k.mu.Lock()
	m.hold, m.caller, m.cancel = h, caller, cancel
	m.next, h.members = h.members, m
	h.witness = caller
	h.ended = false
	loss := h.loss
	k.mu.Unlock()
	if loss != nil { // it came first
		cancel(loss.Cause)
	}
}

// Token is the fencing token, 0 without fencing.
func (h *Hold) Token() uint64 { return h.token }

// Owner is the owner field in the store.
func (h *Hold) Owner() string { return h.tenure.owner }

// Request is what the hold was asked for with.
func (h *Hold) Request() *Request { return h.request }

// Age is the time since the hold was granted.
func (h *Hold) Age() time.Duration { return h.keeper.clock.Now() - h.granted }

// Holds is the number of leases that are not unlocked, 0 once lost.
func (h *Hold) Holds() int {
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	if h.state == Held || h.state == Unsure {
		return int(h.holds)
	}
	return 0
}

// State says how the lease m of h stands.
func (h *Hold) State(m *Member) State {
	now := h.keeper.clock.Now()
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	switch {
	case m.released:
		return Released
	case h.live() && now >= h.tenure.deadline: // its timer has not fired yet
		return Lost
	default:
		return h.state
	}
}

// Remaining is the time until the deadline of lease m, 0 if it is not held.
func (h *Hold) Remaining(m *Member) time.Duration {
	now := h.keeper.clock.Now()
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	if m.released || !h.live() {
		return 0
	}
	return max(0, h.tenure.deadline-now)
}

// live reports whether h is held. The keeper's mutex is held.
func (h *Hold) live() bool { return h.state == Held || h.state == Unsure }

// unlink takes m out of the members. The keeper's mutex is held.
func (h *Hold) unlink(m *Member) {
	for at := &h.members; *at != nil; at = &(*at).next {
		if *at == m {
			*at, m.next = m.next, nil
			break
		}
	}
	if h.witness = nil; h.members != nil {
		h.witness = h.members.caller
	}
}

// callersEnded reports whether the contexts of all callers have ended. The
// keeper's mutex is held; Err of a context is only a read.
func (h *Hold) callersEnded() bool {
	if h.witness != nil && h.witness.Err() == nil {
		return false
	}
	for m := h.members; m != nil; m = m.next {
		if m.caller.Err() == nil {
			return false
		}
	}
	return h.members != nil
}
