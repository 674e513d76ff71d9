package lease

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
)

const (
	// maxSenders bounds the renewals of one kind that are under way at once.
	maxSenders = 64

	// maxTogether bounds the batches that share a round trip; they do if there are
	// more than spread in a period. For a process that has nothing else to do it
	// costs more to wake up than to renew a hundred locks.
	maxTogether = 8
	spread      = 12

	// restlessness bounds the sleep of the alarm while anything is held: its timer
	// stands still while the machine sleeps, so this is how late after a resume a
	// lease that ran out meanwhile may be noticed. Valid notices at once.
	restlessness = time.Second
)

// A laneID tells which tenures are renewed together: those of one renewer, and of
// one lease length, since the length decides how long they may wait for others.
type laneID struct {
	renewer Renewer
	lease   time.Duration
}

// A lane renews its tenures in batches.
type lane struct {
	id      laneID
	tenures int       // that may come to be on due
	members int       // those of them that want renewal
	due     []*Tenure // in the order in which they became due; released ones are still in it
	waiting int       // those of due that are not released
	sending int       // members in renewals under way
	senders int       // renewals under way
	rush    bool      // one of due has failed before, or is suspect
	nextAt  time.Duration
	retry   time.Duration // when failed renewals are tried again
	wakeAt  time.Duration // when to look at due again; 0: not before it changes
}

// laneOf returns the lane of that id. The mutex is held.
func (k *Keeper) laneOf(id laneID) *lane {
	l := k.lanes[id]
	if l == nil {
		l, k.idleLane = k.idleLane, nil
		if l == nil {
			l = new(lane)
		}
		l.id = id
		k.lanes[id] = l
	}
	return l
}

// granted makes the tenure that the store has granted to w, and its first hold.
// The mutex is held.
func (k *Keeper) granted(w *waiter, sent, now time.Duration, g Grant) *Hold {
	r := w.request
	terms := r.Terms
	made := new(struct { // one allocation
		Tenure
		Hold
	})
	t := &made.Tenure
	*t = Tenure{
		owner: w.owner, store: r.Store, terms: terms, lane: k.laneOf(laneID{r.Store.Renewer(), terms.Lease}), queue: w.queue,
		took: now, deadline: terms.deadline(sent, max(terms.Lease, terms.MinHold)),
		token: g.Token, tokens: int32(g.Block), tainted: w.tainted, index: -1,
	}
	// The first renewals are spread, or processes that start together would renew
	// together for ever.
	t.renewAt = sent + terms.period() - jitter(terms.period()/4)
	if !terms.Fixed {
		t.lane.members++
	}
	t.lane.tenures++
	if !r.Shared {
		w.queue.tenure = t
	}
	return k.own(t, &made.Hold, r, now)
}

// own gives t to its next local owner, whose hold is made in h. The mutex is held.
func (k *Keeper) own(t *Tenure, h *Hold, r *Request, now time.Duration) *Hold {
	k.join(t, h, r, now)
	k.schedule(t, now)
	return h
}

// join makes h a hold of t; schedule has to follow. The mutex is held.
func (k *Keeper) join(t *Tenure, h *Hold, r *Request, now time.Duration) *Hold {
	*h = Hold{keeper: k, request: r, tenure: t, granted: now, state: Held, holds: 1, sibling: t.hold}
	if t.tokens > 0 {
		h.token = t.token
		t.token++
		t.tokens--
	}
	if k.config.StallAfter > 0 {
		h.stallAt = now + k.config.StallAfter
	}
	t.hold = h
	k.held++
	return h
}

// schedule puts t where the alarm will find it. The mutex is held.
func (k *Keeper) schedule(t *Tenure, now time.Duration) {
	wake := t.deadline
	if t.wantsRenewal() && !t.due && !t.renewing {
		wake = min(wake, t.renewAt)
	}
	for h := t.hold; h != nil; h = h.sibling {
		wake = min(wake, h.endsAt())
	}
	if h := t.hold; h.stallAt > 0 { // of many that share it one says so
		wake = min(wake, h.stallAt)
	}
	if t.passes > 0 { // or the head of the queue sees to that itself
		if at := t.queue.stallAt(k); at > 0 {
			wake = min(wake, at)
		}
	}
	k.heap.set(t, wake)
	k.arm(wake, now)
}

// endsAt is when h is lost by its own terms, however long its lease is. The mutex is
// held.
func (h *Hold) endsAt() time.Duration {
	at, terms := time.Duration(1<<62), h.tenure.terms
	if terms.MaxHold > 0 {
		at = h.granted + terms.MaxHold
	}
	if h.ended && terms.Grace >= 0 {
		at = min(at, h.endedAt+terms.Grace)
	}
	return at
}

// end stops renewal and every timer of t, for good. The mutex is held.
func (k *Keeper) end(t *Tenure) {
	k.heap.remove(t)
	l := t.lane
	if t.due {
		t.due = false
		l.waiting--
	}
	t.hold = nil
	if !t.terms.Fixed {
		l.members--
	}
	if l.tenures--; l.tenures == 0 { // answers that are under way need no map
		delete(k.lanes, l.id)
		if l.senders == 0 {
			*l = lane{}
			k.idleLane = l
		}
	}
}

// arm has the alarm fire at the latest at at. The mutex is held.
func (k *Keeper) arm(at, now time.Duration) {
	at = min(at, now+restlessness)
	if k.alarmAt != 0 && k.alarmAt <= at {
		return
	}
	k.alarmAt = max(at, 1)
	switch d := at - now; {
	case d <= 0: // a timer of a synctest bubble would run inside Reset, under this mutex
		go k.watch()
	case k.alarm == nil:
		k.alarm = time.AfterFunc(d, k.watch)
	default:
		k.alarm.Reset(d)
	}
}

// watch does what is due: it ends leases whose time is over, begins renewals,
// and reports stalls. It is the only thing that a timer calls.
func (k *Keeper) watch() {
	type stalled struct {
		request *Request
		stall   Stall
	}
	var lost []*Hold
	var stalls []stalled
	k.mu.Lock()
	k.alarmAt = 0
	now := k.clock.Now()
	for len(k.heap) > 0 && k.heap[0].at <= now {
		t := k.heap[0].tenure
		terms := t.terms
		if now >= t.deadline {
			lost = append(lost, k.loseAll(t, fault.Expired, t.failure)...)
			continue
		}
		for h := t.hold; h != nil; {
			next := h.sibling
			switch {
			case terms.MaxHold > 0 && now >= h.granted+terms.MaxHold:
				lost = append(lost, k.lose(h, fault.MaxHold, nil))
			case now >= h.endsAt():
				lost = append(lost, k.lose(h, fault.Abandoned, nil))
			}
			h = next
		}
		if t.hold == nil {
			continue
		}
		if t.wantsRenewal() && !t.due && !t.renewing && now >= t.renewAt {
			for h := t.hold; h != nil; h = h.sibling {
				switch ended := h.callersEnded(); {
				case ended && h.ended: // since an earlier renewal already
					if k.config.StallAfter > 0 && !h.endTold {
						h.endTold = true
						stalls = append(stalls, stalled{h.request, Stall{Waiting: t.queue.length, For: now - h.granted, Ended: true, Owner: h.Owner()}})
					}
				case ended:
					h.ended, h.endedAt = true, now
				default:
					h.ended = false
				}
			}
			k.becomeDue(t, now)
		}
		if t.passes > 0 { // nobody has woken the one who came to be the head
			if s := t.queue.stalled(k, now); s != nil {
				stalls = append(stalls, stalled{t.queue.first.request, *s})
			}
		}
		if h := t.hold; h.stallAt > 0 && now >= h.stallAt {
			stalls = append(stalls, stalled{h.request, Stall{Waiting: t.queue.length, For: now - h.granted, Ended: h.callersEnded(), Owner: h.Owner()}})
			h.stallAt = now + k.config.StallAfter
		}
		k.schedule(t, now)
	}
	for q, at := range k.partings {
		if at <= now {
			delete(k.partings, q)
			q.wakeHead()
		}
	}
	own := k.send(now, len(lost)+len(stalls) == 0)
	k.sweep(now)
	k.rearm(now)
	k.mu.Unlock()

	k.tellLost(lost)
	if k.config.Events.Stalled != nil {
		for _, s := range stalls {
			k.config.Events.Stalled(s.request, s.stall)
		}
	}
	k.renewAll(own)
}

// rearm sets the alarm for whatever comes next. The mutex is held.
func (k *Keeper) rearm(now time.Duration) {
	if len(k.heap) > 0 {
		k.arm(k.heap[0].at, now)
	}
	for _, l := range k.lanes {
		if l.wakeAt > 0 {
			k.arm(l.wakeAt, now)
		}
	}
	if at := k.dead.next(); at > 0 {
		k.arm(at, now)
	}
	for _, at := range k.partings {
		k.arm(at, now)
	}
}

// becomeDue puts t on its lane. The mutex is held.
func (k *Keeper) becomeDue(t *Tenure, now time.Duration) {
	t.due, t.dueSince = true, now
	t.lane.due = append(t.lane.due, t)
	t.lane.waiting++
	if t.failures > 0 || t.suspect {
		t.lane.rush = true
	}
}

// Suspect has the lock renewed at once if it is held here: somebody is known to
// have removed it.
func (k *Keeper) Suspect(id ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, at := range slices.Clone(k.heap) { // suspect orders it anew
		if at.tenure.queue.id == id {
			k.suspect(at.tenure)
		}
	}
}

// suspect has t renewed at once, or asked about if its lease is fixed: a release
// was announced that this process did not send. The mutex is held.
func (k *Keeper) suspect(t *Tenure) {
	if t.renewing { // it may have been answered before the release
		t.recheck = true
		return
	}
	if t.suspect || t.hold == nil {
		return
	}
	t.suspect = true
	now := k.clock.Now()
	if !t.due {
		k.becomeDue(t, now)
		k.schedule(t, now)
	}
	t.lane.rush = true
	k.send(now, false)
	k.rearm(now)
}

// together is how many batches of l share a round trip, out of how many.
func (k *Keeper) together(l *lane) (together, batches int) {
	batches = max(1, (l.members+k.config.Batch-1)/k.config.Batch)
	return min((batches+spread-1)/spread, maxTogether), batches
}

// send begins the renewals that are due, each on a goroutine of its own; with own
// it leaves the last one to the caller, which is to pass it to renewAll when it has
// let go of the mutex. The mutex is held.
//
// Locks wait for one another for an eighth of a period, so that batches fill;
// once together they stay together. Renewals keep a distance, so that ten thousand
// locks that were taken in one burst are not renewed in one.
func (k *Keeper) send(now time.Duration, own bool) (last *renewal) {
	for _, l := range k.lanes {
		for l.wakeAt = 0; l.waiting > 0 && l.senders < maxSenders; {
			for !l.due[0].due { // released meanwhile
				l.due = l.due[1:]
			}
			period := l.id.lease / 3
			together, batches := k.together(l)
			size := together * k.config.Batch
			if !l.rush {
				all := l.waiting >= l.members-l.sending
				if late := l.due[0].dueSince + period/8; !all && l.waiting < size && now < late {
					l.wakeAt = late
					break
				}
				if now < l.nextAt {
					l.wakeAt = l.nextAt
					break
				}
				if whole := l.waiting / k.config.Batch; whole > 0 && !all { // the rest has time to fill a batch
					size = min(size, whole*k.config.Batch)
				}
			}
			l.nextAt = now + period*time.Duration(together)/time.Duration(2*batches)
			if last != nil {
				go k.renewAll(last)
			}
			last = k.collect(l, size, now)
		}
		if l.waiting == 0 {
			l.due, l.rush = nil, false
		}
	}
	if last != nil && !own {
		go k.renewAll(last)
		last = nil
	}
	return last
}

// A renewal is one round trip of a lane: a batch, or several.
type renewal struct {
	lane    *lane
	tenures []*Tenure
	locks   []Renewal
	bound   time.Duration
}

// collect takes up to n of those that are due for one renewal. The mutex is held.
func (k *Keeper) collect(l *lane, n int, now time.Duration) *renewal {
	n = min(n, l.waiting)
	var (
		tenures               = make([]*Tenure, 0, n)
		locks                 = make([]Renewal, 0, n)
		rest    time.Duration = 1 << 62
		taken   int
	)
	for _, t := range l.due {
		if len(tenures) == n {
			break
		}
		taken++
		if !t.due {
			continue
		}
		t.due, t.renewing = false, true
		want := t.terms.Lease
		if t.terms.Fixed {
			want = time.Millisecond // only asks: a renewal never takes time away
		}
		tenures = append(tenures, t)
		locks = append(locks, t.store.Renewal(t.owner, want))
		rest = min(rest, t.deadline-now)
		if !t.terms.Fixed {
			l.sending++
		}
	}
	l.due = l.due[taken:]
	l.waiting -= len(tenures)
	l.rush = false
	for _, t := range l.due {
		if t.due && (t.failures > 0 || t.suspect) {
			l.rush = true
			break
		}
	}
	l.senders++
	k.running++
	// An answer that never comes must leave time for another try.
	bound := min(k.config.Timeout, max(rest/3, 10*time.Millisecond), max(rest, time.Millisecond))
	return &renewal{l, tenures, locks, bound}
}

// renewAll runs r, if there is one, and then what its end makes possible.
func (k *Keeper) renewAll(r *renewal) {
	for r != nil {
		r = k.renew(r)
	}
}

// renew runs one renewal and draws the conclusions. It returns the next one, if any.
func (k *Keeper) renew(r *renewal) (next *renewal) {
	l, tenures, locks := r.lane, r.tenures, r.locks
	ctx := newCall(context.Background(), r.bound)
	sent := k.clock.Now()
	renewer := l.id.renewer
	outcomes := renewer.Renew(ctx, locks)
	ctx.stop()
	now := k.clock.Now()

	var lost []*Hold
	k.mu.Lock()
	again := l.retryAt(tenures, now)
	l.senders--
	for _, t := range tenures { // before the lane may go with its last tenure
		if !t.terms.Fixed {
			l.sending--
		}
	}
	for i, t := range tenures {
		t.renewing = false
		o := outcomes[i]
		h := t.hold
		if h == nil || now >= t.deadline {
			// Ended, or about to: the alarm does that, and the answer comes too late.
			if h != nil {
				k.schedule(t, now)
			}
			continue
		}
		switch {
		case o.Err != nil:
			t.failures++
			t.failure = unwrap(o.Err)
			t.setState(Unsure)
			t.renewAt = again
		case o.Verdict == Mine:
			k.confirmed(t)
			if !t.terms.Fixed {
				t.deadline = max(t.deadline, t.terms.deadline(sent, t.terms.Lease))
			}
			t.renewAt = sent + t.terms.period()
		default:
			reason := lossOf(o.Verdict)
			if t.suspect || t.recheck {
				reason = fault.Forced
			}
			lost = append(lost, k.loseAll(t, reason, nil)...)
			continue
		}
		if t.recheck {
			t.recheck, t.suspect = false, true
			k.becomeDue(t, now)
		}
		k.schedule(t, now)
	}
	next = k.send(now, len(lost) == 0)
	k.rearm(now)
	k.mu.Unlock()
	if k.config.Events.Renewed != nil {
		for batch := range slices.Chunk(outcomes, k.config.Batch) {
			renewed, failure := sum(batch)
			k.config.Events.Renewed(len(batch), renewed, now-sent, failure, renewer)
		}
	}
	k.tellLost(lost)
	k.finished()
	return next
}

// sum says how many were renewed, and what the first failure is.
func sum(outcomes []Outcome) (renewed int, failure error) {
	for _, o := range outcomes {
		if o.Err == nil && o.Verdict == Mine {
			renewed++
		} else if o.Err != nil && failure == nil {
			failure = unwrap(o.Err)
		}
	}
	return renewed, failure
}

// retryAt is when a batch that failed is tried again. The lane has one such time
// for all: a thousand locks that failed are to be tried again in ten batches, and
// not in ever smaller ones. The mutex is held.
func (l *lane) retryAt(batch []*Tenure, now time.Duration) time.Duration {
	pause := 250 * time.Millisecond
	for _, t := range batch {
		pause = min(pause, 40*time.Millisecond<<min(t.failures, 8), max((t.deadline-now)/4, time.Millisecond))
	}
	if at := now + jitter(pause); l.retry <= now || at < l.retry {
		l.retry = at
	}
	return l.retry
}

// confirmed notes that the store has just said that t's owner has the lock. The
// mutex is held.
func (k *Keeper) confirmed(t *Tenure) {
	t.failures, t.failure, t.suspect = 0, nil, false
	t.setState(Held)
}

// wantsRenewal reports whether t is to be renewed, or asked about. The mutex is
// held.
func (t *Tenure) wantsRenewal() bool { return !t.terms.Fixed || t.suspect }

// lose ends h as lost; tellLost has to follow outside the mutex, which is held
// here.
func (k *Keeper) lose(h *Hold, reason fault.Reason, err error) *Hold {
	h.state = Lost
	h.loss = &Loss{Reason: reason, At: time.Now(), Err: err}
	h.loss.Cause = k.config.Events.Cause(h, h.loss)
	if h.tenure.leave(h); h.tenure.hold == nil {
		k.end(h.tenure)
	}
	return h
}

// tellLost ends the contexts of lost holds, and only then lets others of this
// process ask for the locks.
func (k *Keeper) tellLost(lost []*Hold) {
	for _, h := range lost {
		k.mu.Lock()
		var members []*Member
		for m := h.members; m != nil; m = m.next {
			members = append(members, m)
		}
		k.mu.Unlock()
		for _, m := range members {
			m.cancel(h.loss.Cause)
		}
		k.mu.Lock()
		stop := k.vacate(h)
		k.held--
		k.fell()
		k.mu.Unlock()
		if stop != nil {
			stop()
		}
		if k.config.Events.Lost != nil {
			k.config.Events.Lost(h, h.loss)
		}
	}
}

// vacate takes the tenure of h, which is lost, out of its queue, so that the head
// may ask. The mutex is held.
func (k *Keeper) vacate(h *Hold) (stop func()) {
	t := h.tenure
	q := t.queue
	if t.hold != nil { // others share it
		return nil
	}
	if t.tainted && h.loss.Reason != fault.Closed { // Close releases, and condemns then
		// Not before its time is over: work that does not heed its context is
		// protected as long as if there had been no doubt.
		k.condemn(t.store, t.owner, t.deadline)
		t.tainted = false
	} else if h.request.Shared && h.loss.Reason != fault.Closed && !t.swept {
		// Others keep the lock alive, and this owner in it.
		t.swept = true
		k.sweepOnce(t.store, t.owner, t.deadline)
	}
	if h.request.Shared {
		return k.settleQueue(q)
	}
	q.tenure, q.word, q.freed = nil, silence, k.clock.Now()
	if t.failures > 0 {
		q.word, q.err = failed, t.failure
	}
	q.lookAt, q.notBefore = 0, 0
	q.wakeHead()
	return k.settleQueue(q)
}
