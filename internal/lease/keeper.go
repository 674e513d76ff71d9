package lease

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
)

const (
	// handoffTime bounds a run of local handovers: it pays while sections are
	// short; with long ones every process is to get its turn after each.
	handoffTime = 5 * time.Millisecond

	// humbleEvery is how often a process that seems to be alone lets others go first
	// all the same: those that listen to a replica, or through a proxy, are not
	// counted.
	humbleEvery = 50 * time.Millisecond

	// longestBackoff bounds the pause after a failure. It is also how late a waiter
	// may notice that the trouble is over.
	longestBackoff = 80 * time.Millisecond

	// blindSleep is how long a waiter sleeps when the lock has no end of its own.
	blindSleep = 5 * time.Second
)

// Config is what a keeper is made with.
type Config struct {
	Clock      *Clock
	Timeout    time.Duration // bounds each command
	Batch      int           // locks per renewal
	StallAfter time.Duration // negative: never
	OwnerName  string        // owners are OwnerName + sequence
	Events     Events
}

// Events are told what happened, outside the mutex and on the goroutine that
// found out: they must not block. Nil fields are left out.
type Events struct {
	// Cause makes the error that contexts and calls are told of a loss. It cannot be
	// left out, and is called under the mutex.
	Cause   func(h *Hold, l *Loss) error
	Retried func(ctx context.Context, r *Request, attempts int, err error)
	Renewed func(locks, renewed int, took time.Duration, err error, renewer Renewer)
	Lost    func(h *Hold, l *Loss)
	Stalled func(r *Request, s Stall)
}

// A Stall is a lock that may be stuck.
type Stall struct {
	Waiting int // callers that wait
	For     time.Duration
	Ended   bool   // the caller's context has ended
	Owner   string // if it is held here
}

// ID names a queue: callers with one id exclude each other.
type ID struct{ Kind, Key string }

// A Request is what a lock is asked for with; it is shared by all calls of one
// handle.
type Request struct {
	ID    ID
	Store Store
	Terms *Terms        // not changed
	Wait  time.Duration // bounds the wait; 0: ctx alone
	Tag   any           // for events

	Shared bool // many may hold it
	First  ID   // while callers wait there, this lock is not handed over
	Part   bool // of what this process holds: it may be taken while Close waits for holders
}

// A Result is how an Acquire ended.
type Result struct {
	Hold     *Hold
	Waited   time.Duration
	Attempts int
	Handoff  bool
}

// Stats are momentary counts.
type Stats struct {
	Held, Waiting, Condemned, Running int
}

// A Keeper has all waiters and holds of one session.
type Keeper struct {
	config Config
	clock  *Clock
	timers sync.Pool // *time.Timer; per keeper, since a timer may not leave its synctest bubble

	horizon atomic.Pointer[horizon] // that of the latest commands
	until   atomic.Int64            // a time; 0 until Close has lost patience: when every command is to be over

	mu       sync.Mutex // guards what follows, and all queues, tenures and holds
	sequence uint64
	queues   map[ID]*queue
	waiting  int
	held     int
	heap     tenureHeap
	partings map[*queue]time.Duration // whose heads wait for the answer to a release, and until when
	lanes    map[laneID]*lane
	idleLane *lane // to be used again, if any
	alarm    *time.Timer
	alarmAt  time.Duration // when alarm fires; 0: not set
	trip     time.Duration // smoothed round trip
	dead     condemned
	closing  bool
	closed   bool
	running  int           // goroutines of ours
	changed  chan struct{} // closed and remade when running or held falls, while closing
}

// NewKeeper returns a keeper that has nothing and does nothing.
func NewKeeper(c Config) *Keeper {
	return &Keeper{config: c, clock: c.Clock, queues: map[ID]*queue{}, lanes: map[laneID]*lane{}, partings: map[*queue]time.Duration{}}
}

// Stats returns momentary counts.
func (k *Keeper) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	return Stats{Held: k.held, Waiting: k.waiting, Condemned: k.dead.len(), Running: k.running}
}

// A word is the last that the store said of a lock.
type word uint8

const (
	silence word = iota // nothing yet
	taken
	failed
)

// A queue has the callers that wait for one lock. It exists while somebody
// waits, holds, or has an attempt under way.
type queue struct {
	keeper      *Keeper
	id          ID
	first, last *waiter
	length      int
	tenure      *Tenure // this process holds the lock
	attempt     *waiter // whose attempt is under way
	stop        func()  // ends the subscription; nil without one

	lookAt    time.Duration // when to ask next if no signal comes
	notBefore time.Duration // no signal makes the head ask earlier
	parting   *Tenure       // the last one released, while lookAt and notBefore are because of it
	humbleAt  time.Duration // when to let others go first although nobody listens
	quiet     time.Duration // no stall is reported before
	freed     time.Duration // when this process last let go of the lock for certain
	refusedAt time.Duration // when the attempt was sent that was last told that it is taken
	err       error         // why word is failed
	failures  int32         // failed attempts in a row
	wins      int32         // grants in a row, with no refusal between
	echoes    int32         // own releases whose messages have not come back
	word      word

	subscribing bool
	woken       bool   // a signal came since the last attempt began
	hears       bool   // the subscription is certain, and so counts among those that hear
	alone       bool   // nobody else heard of the last release
	told        Queuer // knows that this process waits
	dropped     bool
}

// stallAt is when the wait for q is to be reported, 0 for never: the head has
// waited longest. The mutex is held.
func (q *queue) stallAt(k *Keeper) time.Duration {
	if q.first == nil || k.config.StallAfter <= 0 {
		return 0
	}
	return max(q.first.began+k.config.StallAfter, q.quiet)
}

// stalled is the stall to report now, nil if there is none. A long queue that
// moves has many callers that have waited long, and is one stall. The mutex is
// held.
func (q *queue) stalled(k *Keeper, now time.Duration) *Stall {
	if at := q.stallAt(k); at == 0 || now < at {
		return nil
	}
	q.quiet = now + k.config.StallAfter
	return &Stall{Waiting: q.length, For: now - q.first.began}
}

// A waiter is one call of Acquire in a queue.
type waiter struct {
	queue      *queue
	prev, next *waiter
	request    *Request
	once       bool
	queued     bool // behind others, when it came
	ctx        context.Context
	wake       chan struct{} // a signal that something here has changed; made before the first sleep
	owner      string
	behind     int // of those in the queue when it asks
	began      time.Duration
	call       call // of the first attempt

	hold     *Hold // it has the lock
	err      error // it will not get it
	retried  error // a failure to tell the observer of
	attempts int
	tainted  bool // an attempt had an unknown outcome
	left     bool // it is out of the queue without the lock
	handoff  bool
}

// signal has w decide anew. The mutex is held.
func (w *waiter) signal() {
	if w.wake == nil { // it has not decided at all yet
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (q *queue) push(w *waiter) {
	w.queue, w.prev = q, q.last
	if q.last != nil {
		q.last.next = w
	} else {
		q.first = w
	}
	q.last = w
	q.length++
}

func (q *queue) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.last = w.prev
	}
	w.prev, w.next = nil, nil
	q.length--
}

// wakeHead has the head look again.
func (q *queue) wakeHead() {
	if q.first != nil {
		q.first.signal()
	}
}

// Acquire waits for the lock until it has it, ctx ends, or r.Wait has passed;
// with once it asks one time. The error is one of the sentinels of package
// fault, joined with what it was made of.
func (k *Keeper) Acquire(ctx context.Context, r *Request, once bool) (Result, error) {
	w := &waiter{request: r, once: once, ctx: ctx, began: k.clock.Now()}
	err := k.acquire(w)
	result := Result{Hold: w.hold, Attempts: w.attempts, Handoff: w.handoff}
	if err == nil {
		result.Waited = w.hold.granted - w.began
	} else {
		result.Waited = k.clock.Now() - w.began
	}
	return result, err
}

func (k *Keeper) acquire(w *waiter) error {
	if w.ctx.Err() != nil {
		return ended(w.ctx, silence, nil)
	}
	join, err := k.enqueue(w)
	switch {
	case err != nil:
		return err
	case join:
		// A subscription that is there already makes the second attempt needless
		// that a new one would call for.
		stop, ok := w.request.Store.Join(w.queue)
		if !ok {
			stop = nil
		}
		k.subscribed(w.queue, stop, true)
	}
	return k.wait(w)
}

// enqueue puts w behind the others that want its lock; join asks for a
// subscription, if it costs nothing.
func (k *Keeper) enqueue(w *waiter) (join bool, err error) {
	r := w.request
	listening := r.Store.Listening() // not under the mutex
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closing && (!r.Part || k.until.Load() > 0) {
		return false, fault.ErrClosed
	}
	q := k.queues[r.ID]
	if q == nil {
		q = &queue{keeper: k, id: r.ID}
		k.queues[r.ID] = q
	}
	holds := q.tenure != nil && q.tenure.hold != nil // and not: has just lost it
	if w.once && (holds || q.length > 0 && q.word == taken) {
		return false, fault.ErrNotAcquired
	}
	w.queued = q.length > 0
	q.push(w)
	k.waiting++
	if join = listening && q.first == w && q.stop == nil && !q.subscribing && !w.once; join {
		q.subscribing = true
	}
	return join, nil
}

var _ Listener = (*queue)(nil)

// Notify is what the subscription of q calls.
func (q *queue) Notify(s Signal) {
	k := q.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if q.dropped {
		return
	}
	q.hears = true
	switch {
	case s == Look:
		q.echoes = 0 // messages may be lost
	case q.echoes > 0:
		q.echoes--
	case q.tenure != nil:
		k.suspect(q.tenure)
	}
	q.woken = true
	if q.tenure == nil {
		q.wakeHead()
	}
}

// subscribed attaches a subscription to q, if it is still wanted; certain says that
// it counts already.
func (k *Keeper) subscribed(q *queue, stop func(), certain bool) {
	k.mu.Lock()
	q.subscribing = false
	if q.length > 0 && q.stop == nil {
		q.stop, stop = stop, nil
		q.hears = q.hears || certain && q.stop != nil
		// An attempt that is under way began before anybody listened.
		q.woken = q.woken || q.attempt != nil
	}
	q.hears = q.hears && q.stop != nil
	q.wakeHead() // it may have waited for this to subscribe itself
	k.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// settleQueue drops what q no longer needs; it returns what is to be called then.
// The mutex is held.
func (k *Keeper) settleQueue(q *queue) (stop func()) {
	if q.length > 0 {
		return nil
	}
	stop, q.stop, q.hears = q.stop, nil, false
	if withdraw := k.withdrawal(q); withdraw != nil {
		unsubscribe := stop
		stop = func() {
			if unsubscribe != nil {
				unsubscribe()
			}
			withdraw()
		}
	}
	if q.tenure == nil && q.attempt == nil && !q.dropped {
		q.dropped = true
		delete(k.queues, q.id)
	}
	return stop
}

// wait is the wait loop of one caller. Only the head of the queue does more than
// sleep in it.
func (k *Keeper) wait(w *waiter) error {
	var end <-chan time.Time
	bound := w.request.Wait
	if w.once {
		bound = k.config.Timeout
	}
	if bound > 0 {
		timer := k.newTimer(bound)
		defer k.freeTimer(timer)
		end = timer.C
	}
	var nap *time.Timer
	defer func() {
		if nap != nil {
			k.freeTimer(nap)
		}
	}()
	for {
		k.mu.Lock()
		step := k.step(w)
		// Nothing but Close can call such a caller away, and Close waits for the answer
		// anyway: so it asks itself and spares a goroutine.
		itself := step.block > 0 && w.ctx.Done() == nil && end == nil
		if w.wake == nil && !step.done && !itself {
			w.wake = make(chan struct{}, 1)
		}
		k.mu.Unlock()
		if step.retried != nil && k.config.Events.Retried != nil {
			k.config.Events.Retried(w.ctx, w.request, w.attempts, step.retried)
		}
		if step.stalled != nil && k.config.Events.Stalled != nil {
			k.config.Events.Stalled(w.request, *step.stalled)
		}
		if step.stop != nil {
			step.stop()
		}
		if step.done {
			return w.err
		}
		if step.subscribe {
			k.subscribed(w.queue, w.request.Store.Subscribe(w.queue), false)
		}
		if step.block > 0 {
			if itself {
				if k.try(w, step.block, step.now) {
					return w.err
				}
				continue
			}
			go k.try(w, step.block, step.now)
		}
		var naps <-chan time.Time
		if step.nap > 0 {
			if nap == nil {
				nap = k.newTimer(step.nap)
			} else {
				nap.Reset(step.nap)
			}
			naps = nap.C
		}
		if naps == nil && end == nil && w.ctx.Done() == nil {
			<-w.wake // a third of what select costs
			continue
		}
		select {
		case <-w.wake:
		case <-naps:
		case <-w.ctx.Done():
			return k.leave(w, true)
		case <-end:
			return k.leave(w, false)
		}
	}
}

// A step is what a waiter does next: return, or sleep until something happens.
type step struct {
	done      bool
	stop      func() // a subscription to end
	subscribe bool
	block     int // ask, for so many tokens
	now       time.Duration
	nap       time.Duration
	retried   error
	stalled   *Stall
}

// step decides for w. The mutex is held.
func (k *Keeper) step(w *waiter) (s step) {
	q := w.queue
	s.retried, w.retried = w.retried, nil
	if w.hold != nil || w.err != nil {
		s.done, s.stop = true, k.settleQueue(q)
		return s
	}
	if q.first != w {
		return s
	}
	now := k.clock.Now()
	s.now = now
	s.stalled = q.stalled(k, now)
	if at := q.stallAt(k); at > 0 {
		s.nap = at - now
	}
	if q.tenure != nil || q.attempt != nil {
		return s
	}
	s.subscribe = q.word == taken && q.stop == nil && !q.subscribing && !w.once
	if s.subscribe {
		q.subscribing = true
	}
	at := q.lookAt
	if q.woken {
		at = 0
	}
	if at = max(at, q.notBefore); at > now {
		if s.nap == 0 || at-now < s.nap {
			s.nap = at - now
		}
		return s
	}
	s.block = k.ask(w)
	return s
}

// ask begins an attempt for w, which try has to make; it returns the number of
// tokens to ask for. The mutex is held.
func (k *Keeper) ask(w *waiter) (block int) {
	q := w.queue
	if q.parting != nil {
		q.parting = nil
		delete(k.partings, q)
	}
	q.attempt, q.woken = w, false
	w.attempts++
	if w.owner == "" {
		w.owner = k.newOwner()
	}
	if queuer, ok := w.request.Store.(Queuer); ok && !w.once {
		q.told, w.behind = queuer, w.behindOf()
	}
	block = 1
	if terms := w.request.Terms; terms.Fencing && terms.Handoff > 0 {
		block = 1 + min(q.length-1, terms.Handoff)
	}
	k.running++
	return block
}

// newOwner is an owner that nobody has been yet. The mutex is held.
func (k *Keeper) newOwner() string {
	k.sequence++
	var space [128]byte
	return string(strconv.AppendUint(append(space[:0], k.config.OwnerName...), k.sequence, 10))
}

// try is one attempt, sent at the earliest at sent; done reports whether it ended
// the call of w. It is never abandoned: if the caller leaves meanwhile, a grant
// goes to the next or back.
func (k *Keeper) try(w *waiter, block int, sent time.Duration) (done bool) {
	ctx := k.begin(w.ctx, &w.call, k.config.Timeout, sent)
	grant, err := k.take(ctx, w, block)
	ctx.stop()
	done, surplus := k.answered(w, sent, k.clock.Now(), grant, err)
	if surplus != nil {
		k.surplus(surplus)
		k.finished()
	}
	return done
}

// answered draws the conclusions from the answer to an attempt of w. A surplus is a
// grant for which there is no caller any more: it has to be given back, and the
// attempt counted off then.
func (k *Keeper) answered(w *waiter, sent, now time.Duration, grant Grant, err error) (done bool, surplus *Hold) {
	k.mu.Lock()
	q := w.queue
	q.attempt = nil
	switch terms := w.request.Terms; {
	case err == nil && grant.Taken && now < terms.deadline(sent, max(terms.Lease, terms.MinHold)):
		k.sawTrip(now - sent)
		q.word, q.err, q.failures = taken, nil, 0
		q.wins++
		hold := k.granted(w, sent, now, grant)
		if w.left {
			surplus = hold
		} else {
			w.hold = hold
			q.remove(w)
			k.waiting--
		}
		if w.behind == 0 || !w.request.Shared {
			q.told = nil // the grant has taken it back
		}
		if w.request.Shared {
			k.admit(w, hold)
			q.word, q.lookAt, q.notBefore = silence, 0, 0 // those that do not share it ask at once
		} else {
			k.answerOnce(q, fault.ErrNotAcquired)
		}
	case err == nil && grant.Taken:
		// The answer took longer than the lease: nobody may act on it.
		w.tainted = true
		k.attemptFailed(w, now, &fault.Failure{
			Class: fault.NotExecuted,
			Spent: true,
			Err:   fmt.Errorf("the grant came after %v, later than its lease of %v", now-sent, terms.Lease),
		})
	case err == nil:
		k.sawTrip(now - sent)
		q.word, q.err, q.failures, q.wins, q.alone = taken, nil, 0, 0, false
		q.refusedAt = sent
		q.lookAt = now + k.sleepFor(w.request.Store, grant.Left)
		k.refuseOnce(q, sent)
	default:
		k.attemptFailed(w, now, err)
	}
	if w.left && surplus == nil {
		k.giveUp(w)
	}
	w.signal()
	q.wakeHead()
	stop := k.settleQueue(q)
	done = w.hold != nil || w.err != nil && w.retried == nil
	if surplus == nil && stop == nil {
		k.running--
		k.fell()
	}
	k.mu.Unlock()
	if stop != nil {
		stop()
		if surplus == nil {
			k.finished()
		}
	}
	return done, surplus
}

// sleepFor is how long to sleep on a lock that its holder may keep for left. The
// extra millisecond is the grain of the store's clock.
func (k *Keeper) sleepFor(s Store, left time.Duration) time.Duration {
	sleep := left + time.Millisecond
	if left < 0 {
		sleep = blindSleep
	}
	if longest := s.LongestSleep(); longest > 0 {
		sleep = min(sleep, longest)
	}
	return sleep
}

// attemptFailed notes a failed attempt of w: it is tried again after a pause, or
// ends the call. The mutex is held.
func (k *Keeper) attemptFailed(w *waiter, now time.Duration, err error) {
	q := w.queue
	q.word, q.err, q.wins = failed, err, 0
	class := fault.ClassOf(err)
	w.tainted = w.tainted || class == fault.Unknown || class == fault.Fatal && !errors.Is(err, fault.ErrWrongType)
	if fault.Spent(err) {
		// The owner is released, or about to be, and a late release would take the
		// lock from it again: the next attempt is another owner's.
		k.condemn(w.request.Store, w.owner, now)
		w.owner, w.tainted = "", false
	}
	pause := jitter(min(longestBackoff, 4*time.Millisecond<<min(q.failures, 10)))
	q.failures++
	q.lookAt, q.notBefore = now+pause, now+pause
	if class == fault.Fatal {
		if !w.left {
			k.refuse(w, unwrap(err))
		}
		// The next one may be luckier: it may be another key that was refused.
	} else if !w.once {
		w.retried = unwrap(err)
	}
	k.answerOnce(q, errors.Join(fault.ErrUnavailable, unwrap(err)))
}

// answerOnce gives err to all that wanted only one answer. The mutex is held.
func (k *Keeper) answerOnce(q *queue, err error) {
	for w := q.first; w != nil; {
		next := w.next
		if w.once {
			k.refuse(w, err)
			w.signal()
		}
		w = next
	}
}

// refuseOnce tells those that wanted only one answer that the lock was taken when
// it was asked for at sent: those behind somebody who waits, for then this process
// queues for it, and those that had called by then. The lock may have become free
// before the others called, so they ask for themselves. The mutex is held.
func (k *Keeper) refuseOnce(q *queue, sent time.Duration) {
	queues := false
	for w := q.first; w != nil; {
		next := w.next
		switch {
		case !w.once:
			queues = true
		case queues || w.began <= sent:
			k.refuse(w, fault.ErrNotAcquired)
			w.signal()
		}
		w = next
	}
	if q.first != nil && q.first.once {
		q.lookAt = 0
	}
}

// refuse takes w out of its queue with err. The mutex is held.
func (k *Keeper) refuse(w *waiter, err error) {
	w.err, w.left = err, true
	w.queue.remove(w)
	k.waiting--
	k.giveUp(w)
}

// giveUp sees to it that a late copy of an attempt of w leaves nothing behind.
// The mutex is held.
func (k *Keeper) giveUp(w *waiter) {
	if w.tainted && w.queue.attempt != w {
		k.condemn(w.request.Store, w.owner, k.clock.Now())
		w.tainted = false
	}
}

// leave takes w out of the queue because ctx or the wait ended.
func (k *Keeper) leave(w *waiter, ctxEnded bool) error {
	k.mu.Lock()
	q := w.queue
	if w.hold != nil && !ctxEnded || w.err != nil {
		stop := k.settleQueue(q)
		k.mu.Unlock()
		if stop != nil {
			stop()
		}
		return w.err
	}
	surplus := w.hold // granted at the moment when the caller left
	w.hold, w.left = nil, true
	if surplus == nil {
		q.remove(w)
		k.waiting--
		k.giveUp(w)
	}
	said, why := q.word, q.err
	if said == taken && !w.queued && q.refusedAt < w.began {
		said = silence // of who left before w came: it may have become free since
	}
	if q.tenure != nil || said == silence && q.attempt == nil && w.began <= q.freed {
		said = taken // by this process, which has it or had it when w began
	}
	q.wakeHead()
	stop := k.settleQueue(q)
	k.mu.Unlock()
	if stop != nil {
		stop()
	}
	if surplus != nil {
		k.spawn(func() { k.surplus(surplus) })
	}
	if !ctxEnded {
		switch said {
		case taken:
			return fault.ErrNotAcquired
		case failed:
			return errors.Join(fault.ErrUnavailable, unwrap(why))
		default:
			return errors.Join(fault.ErrUnavailable, errNoAnswer)
		}
	}
	return ended(w.ctx, said, why)
}

var errNoAnswer = errors.New("no answer in time")

// ended is the error of a call whose context ended, by the last word of the
// store: "taken" is never said of a store that cannot be asked.
func ended(ctx context.Context, said word, why error) error {
	errs := []error{fault.ErrUnavailable, ctx.Err()}
	if said == taken {
		errs[0] = fault.ErrNotAcquired
	}
	if said == failed {
		errs = append(errs, unwrap(why))
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(ctx.Err(), cause) {
		errs = append(errs, cause)
	}
	return errors.Join(errs...)
}

// unwrap takes the class off an error: callers see the store's own.
func unwrap(err error) error {
	var f *fault.Failure
	if errors.As(err, &f) {
		return f.Err
	}
	return err
}

// sawTrip keeps a smoothed round trip. The mutex is held.
func (k *Keeper) sawTrip(d time.Duration) {
	if k.trip == 0 {
		k.trip = d
		return
	}
	k.trip += (min(d, 4*k.trip) - k.trip) / 8
}

// spawn runs f on a goroutine that Close waits for.
func (k *Keeper) spawn(f func()) {
	k.mu.Lock()
	k.running++
	k.mu.Unlock()
	go func() {
		f()
		k.finished()
	}()
}

// finished counts a goroutine off.
func (k *Keeper) finished() {
	k.mu.Lock()
	k.running--
	k.fell()
	k.mu.Unlock()
}

// fell tells Close that running or held has fallen. The mutex is held.
func (k *Keeper) fell() {
	if k.closing && k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
}
