package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// The fake server has one hash per lock, as the scripts have, on the clock of the
// bubble. Every command takes a quarter of a millisecond each way, and every
// message one to come, unless a test plans otherwise.
const way = 250 * time.Microsecond

var errNetwork = errors.New("the network is down")

func unknown() error     { return &fault.Failure{Class: fault.Unknown, Err: errNetwork} }
func notExecuted() error { return &fault.Failure{Class: fault.NotExecuted, Err: errNetwork} }
func fatal() error       { return &fault.Failure{Class: fault.Fatal, Err: fault.ErrWrongType} }

// A cmd is one command that was sent.
type cmd struct {
	op         string // take, count, release, succeed, renew
	key, owner string // of renew: the first lock's
	next       string // of succeed: who takes
	n          int    // block, holds, number of locks
	d          time.Duration
	at         time.Duration // when it was sent
	locks      []Renewal
}

// A plan is what becomes of a command.
type plan struct {
	before, after time.Duration   // how long until it is executed, and then until the reply
	skip          bool            // it is not executed
	err           error           // the reply instead of the true one
	hole          bool            // no reply
	stubborn      bool            // the reply is waited for whatever ctx says
	copies        []time.Duration // executed again so long after it was sent
	between       func()          // what others do between the two halves of a succession
	grantErr      error           // the reply to its second half instead of the true one
	bad           func(Renewal) error
}

type row struct {
	owner  string
	count  int
	expiry time.Duration
}

type server struct {
	epoch time.Time

	mu       sync.Mutex // guards what follows
	locks    map[string]*row
	last     uint64 // token
	subs     map[*sub]struct{}
	cmds     []cmd
	planned  func(c cmd, p *plan)
	listen   time.Duration // how long it takes to subscribe
	deaf     bool          // messages get lost
	unheard  bool          // releases do not say how many heard of them
	joinable bool
	succeeds bool // stores of requests made from now on are Successors
	receipts bool
	released map[string]bool // receipts by owner
	longest  time.Duration
	subbed   int            // calls of Subscribe
	flying   map[string]int // attempts under way, by process and key
	mostTake int            // the most of them at once
}

func newServer() *server {
	return &server{
		epoch: time.Now(), locks: map[string]*row{}, subs: map[*sub]struct{}{}, flying: map[string]int{}, released: map[string]bool{},
		listen: way,
	}
}

func (s *server) now() time.Duration { return time.Since(s.epoch) }

// plan has f change the plan of every later command; nil: all goes well.
func (s *server) plan(f func(c cmd, p *plan)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.planned = f
}

// sent are the commands of that kind so far.
func (s *server) sent(op string) (cmds []cmd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.cmds {
		if c.op == op {
			cmds = append(cmds, c)
		}
	}
	return cmds
}

func (s *server) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cmds = nil
}

// holder is who has the lock, "" if nobody.
func (s *server) holder(key string) string {
	owner, _, _ := s.look(key)
	return owner
}

func (s *server) look(key string) (owner string, count int, left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.get(key); e != nil {
		return e.owner, e.count, e.expiry - s.now()
	}
	return "", 0, 0
}

// occupy gives the lock to a process that is not of the test.
func (s *server) occupy(key string, ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locks[key] = &row{"foreigner", 1, s.now() + ttl}
}

// force removes the lock, as Force and a foreign release do.
func (s *server) force(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.locks, key)
	s.publish(key)
}

// remove has the lock vanish without a message.
func (s *server) remove(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.locks, key)
}

// get is the row of a lock that has not run out. The mutex is held.
func (s *server) get(key string) *row {
	if e := s.locks[key]; e != nil && s.now() < e.expiry {
		return e
	}
	delete(s.locks, key)
	return nil
}

// publish sends a release message to all that listen, and counts them. The mutex
// is held.
func (s *server) publish(key string) (heard int) {
	for u := range s.subs {
		if u.key == key && !s.deaf && s.now() >= u.from {
			time.AfterFunc(way, func() { u.tell(Message) })
			heard++
		}
	}
	return heard
}

func (s *server) verdict(key, owner string) Verdict {
	switch e := s.get(key); {
	case e == nil:
		return Gone
	case e.owner != owner:
		return Other
	default:
		return Mine
	}
}

// later is time.AfterFunc, but never at once: with the race detector on, Go 1.26
// may crash when a timer that fires at once meets another one in a bubble
// (golang/go#78156).
func later(d time.Duration, f func()) { time.AfterFunc(max(d, 1), f) }

// apart changes plans so that no two replies come at the same instant; see later.
func apart(f func(c cmd, p *plan)) func(c cmd, p *plan) {
	n := time.Duration(0)
	return func(c cmd, p *plan) {
		f(c, p)
		n += 2 * time.Microsecond
		p.after += n
	}
}

// do carries out one command by its plan.
func do[T any](ctx context.Context, s *server, c cmd, execute func(p *plan) T) (T, error) {
	type reply struct {
		v   T
		err error
	}
	p := plan{before: way, after: way}
	c.at = s.now()
	s.mu.Lock()
	s.cmds = append(s.cmds, c)
	if s.planned != nil {
		s.planned(c, &p)
	}
	s.mu.Unlock()
	locked := func() T {
		s.mu.Lock()
		defer s.mu.Unlock()
		return execute(&p)
	}
	for _, d := range p.copies {
		later(d, func() { locked() })
	}
	replies := make(chan reply, 1)
	later(p.before, func() {
		var v T
		if !p.skip {
			v = locked()
		}
		if p.err != nil {
			var none T
			v = none
		}
		if !p.hole {
			later(p.after, func() { replies <- reply{v, p.err} })
		}
	})
	done := ctx.Done()
	if p.stubborn {
		done = nil
	}
	select {
	case r := <-replies:
		return r.v, r.err
	case <-done:
		var none T
		return none, &fault.Failure{Class: fault.Unknown, Err: ctx.Err()}
	}
}

// A store is one lock of the server.
type store struct {
	*server
	key   string
	terms *Terms
	kind  string // of renewer
}

var _ Store = (*store)(nil)

func (s *store) Take(ctx context.Context, owner string, block int) (Grant, error) {
	process, _, _ := cutLast(owner)
	fly := func(d int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.flying[process+s.key] += d
		s.mostTake = max(s.mostTake, s.flying[process+s.key])
	}
	fly(1)
	defer fly(-1)
	lease := max(s.terms.Lease, s.terms.MinHold)
	return do(ctx, s.server, cmd{op: "take", key: s.key, owner: owner, n: block, d: lease}, func(*plan) Grant {
		return s.takes(owner, block, lease)
	})
}

// takes executes a Take. The mutex is held.
func (s *store) takes(owner string, block int, lease time.Duration) Grant {
	e := s.get(s.key)
	switch {
	case e == nil:
		s.locks[s.key] = &row{owner, 1, s.now() + lease}
	case e.owner != owner:
		return Grant{Left: e.expiry - s.now()}
	default:
		e.expiry = max(e.expiry, s.now()+lease)
		if s.terms.Fencing {
			return Grant{Taken: true, Token: s.last, Block: 1}
		}
	}
	g := Grant{Taken: true}
	if s.terms.Fencing {
		g.Token, g.Block = s.last+1, block
		s.last += uint64(block)
	}
	return g
}

func (s *store) Count(ctx context.Context, owner string, holds int) (Verdict, error) {
	return do(ctx, s.server, cmd{op: "count", key: s.key, owner: owner, n: holds}, func(*plan) Verdict {
		v := s.verdict(s.key, owner)
		if v == Mine {
			e := s.get(s.key)
			e.count, e.expiry = holds, max(e.expiry, s.now()+s.terms.Lease)
		}
		return v
	})
}

func (s *store) Release(ctx context.Context, owner string, keep time.Duration) (Farewell, error) {
	return do(ctx, s.server, cmd{op: "release", key: s.key, owner: owner, d: keep}, func(*plan) Farewell {
		return s.releases(owner, keep)
	})
}

// A pair is a store that releases and takes in one round trip.
type pair struct{ *store }

func (pair) Succeeds() bool { return true }

func (s pair) Succeed(ctx context.Context, owner, next string, block int) Succession {
	var grantErr error
	lease := max(s.terms.Lease, s.terms.MinHold)
	out, err := do(ctx, s.server, cmd{op: "succeed", key: s.key, owner: owner, next: next, n: block}, func(p *plan) Succession {
		out := Succession{Farewell: s.releases(owner, 0)}
		if p.between != nil {
			p.between()
		}
		out.Grant, grantErr = s.takes(next, block, lease), p.grantErr
		return out
	})
	if err != nil {
		return Succession{FarewellErr: err, GrantErr: err}
	}
	if grantErr != nil {
		out.Grant, out.GrantErr = Grant{}, grantErr
	}
	return out
}

// releases executes a Release. The mutex is held.
func (s *store) releases(owner string, keep time.Duration) Farewell {
	v, heard := s.verdict(s.key, owner), -1
	if v == Mine {
		if keep > 0 {
			e := s.get(s.key)
			e.owner, e.count, e.expiry = owner+":released", 1, s.now()+keep
		} else {
			delete(s.locks, s.key)
		}
		s.released[owner] = true
		heard = s.publish(s.key)
		if s.unheard {
			heard = -1
		}
	} else if s.receipts && s.released[owner] {
		v = Mine
	}
	return Farewell{v, heard}
}

func (s *store) Receipts() bool { return s.receipts }

func (s *store) Renewer() Renewer { return renewer{s.server, s.kind} }

func (s *store) Renewal(owner string, lease time.Duration) Renewal {
	return Renewal{Key: s.key, Owner: owner, Lease: lease}
}

func (s *store) LongestSleep() time.Duration { return s.longest }

type renewer struct {
	*server
	kind string
}

func (r renewer) Renew(ctx context.Context, locks []Renewal) []Outcome {
	c := cmd{op: "renew", key: locks[0].Key, owner: locks[0].Owner, d: locks[0].Lease, n: len(locks), locks: locks}
	outcomes, err := do(ctx, r.server, c, func(p *plan) []Outcome {
		outcomes := make([]Outcome, len(locks))
		for i, l := range locks {
			if p.bad != nil {
				if outcomes[i].Err = p.bad(l); outcomes[i].Err != nil {
					continue
				}
			}
			if outcomes[i].Verdict = r.verdict(l.Key, l.Owner); outcomes[i].Verdict == Mine {
				e := r.get(l.Key)
				e.expiry = max(e.expiry, r.now()+l.Lease)
			}
		}
		return outcomes
	})
	if err != nil {
		outcomes = make([]Outcome, len(locks))
		for i := range outcomes {
			outcomes[i].Err = err
		}
	}
	return outcomes
}

// A sub is one subscription. No signal comes once stop has returned.
type sub struct {
	key      string
	from     time.Duration // when the server knows of it
	mu       sync.Mutex
	listener Listener // nil: stopped
}

func (u *sub) tell(s Signal) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.listener != nil {
		u.listener.Notify(s)
	}
}

func (s *store) sub(l Listener, after time.Duration) (u *sub, stop func()) {
	u = &sub{key: s.key, listener: l, from: s.now() + after}
	s.subs[u] = struct{}{}
	return u, func() {
		s.mu.Lock()
		delete(s.subs, u)
		s.mu.Unlock()
		u.mu.Lock()
		u.listener = nil
		u.mu.Unlock()
	}
}

func (s *store) Subscribe(l Listener) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subbed++
	u, stop := s.sub(l, s.listen)
	time.AfterFunc(s.listen+way, func() { u.tell(Look) })
	return stop
}

func (s *store) Listening() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.joinable
}

func (s *store) Join(l Listener) (stop func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.joinable {
		return nil, false
	}
	_, stop = s.sub(l, 0)
	return stop, true
}

func cutLast(owner string) (process, sequence string, ok bool) {
	for i := len(owner) - 1; i >= 0; i-- {
		if owner[i] == ':' {
			return owner[:i], owner[i+1:], true
		}
	}
	return "", owner, false
}

// lossError is what contexts and calls are told in these tests.
type lossError struct{ *Loss }

func (e lossError) Error() string        { return "lost: " + string(e.Reason) }
func (e lossError) Is(target error) bool { return target == fault.ErrLost }
func (e lossError) Unwrap() error        { return e.Err }

// A world is a server with the processes that use it.
type world struct {
	*testing.T
	*server
	procs []*proc
}

// in runs f in a bubble, and sees to it that nothing is left at the end: no
// waiter, no hold, no owner, no subscription, no goroutine and no timer.
func in(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, server: newServer()}
		defer func() {
			if t.Failed() { // or what is left of it would hide the failure in a deadlock
				w.abandon()
			}
		}()
		time.Sleep(time.Second)
		f(t, w)
		if !t.Failed() {
			w.settle()
		}
	})
}

// abandon ends whatever a failed test has left running.
func (w *world) abandon() {
	w.plan(nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, p := range w.procs {
		_ = p.Close(ctx)
	}
	time.Sleep(time.Hour)
}

// settle waits until everything that may go on by itself is over, and looks for
// remains.
func (w *world) settle() {
	w.Helper()
	w.plan(nil)
	for range 10 * 60 {
		time.Sleep(time.Second)
		if !slices.ContainsFunc(w.procs, func(p *proc) bool { return p.Stats() != Stats{} }) {
			break
		}
	}
	time.Sleep(2 * time.Second) // the alarm may still be set, for nothing
	var lost []string
	for _, p := range w.procs {
		require.Zero(w, p.Stats(), p.name)
		p.Keeper.mu.Lock()
		queues, lanes, tenures := len(p.queues), len(p.lanes), len(p.heap)
		armed := p.alarm != nil && p.alarm.Stop()
		p.Keeper.mu.Unlock()
		require.Zero(w, queues, "queues")
		require.Zero(w, lanes, "lanes")
		require.Zero(w, tenures, "heap")
		require.False(w, armed, "the alarm is set")
		lost = append(lost, told(p, &p.losers)...)
	}
	w.mu.Lock()
	subs, left := len(w.subs), []string(nil)
	for key, e := range w.locks { // a lock that was lost ends with its lease
		if e.owner != "foreigner" && w.now() < e.expiry && !slices.Contains(lost, e.owner) {
			left = append(left, key+" of "+e.owner)
		}
	}
	w.mu.Unlock()
	require.Zero(w, subs, "subscriptions")
	require.Empty(w, left, "locks")
}

// A proc is one process: a keeper and what it told of.
type proc struct {
	*Keeper
	w    *world
	name string

	mu      sync.Mutex // guards what follows
	lost    []*Loss
	losers  []string // their owners
	retried []error
	stalls  []stallAt
	renewed []renewedAt
}

type stallAt struct {
	Stall
	at  time.Duration
	key string
}

type renewedAt struct {
	locks, renewed int
	err            error
}

func (w *world) proc(change ...func(c *Config)) *proc {
	p := &proc{w: w, name: "process " + strconv.Itoa(len(w.procs)+1)}
	note := func(f func()) {
		p.mu.Lock()
		defer p.mu.Unlock()
		f()
	}
	c := Config{
		Clock: NewClock(), Timeout: 3 * time.Second, Batch: 100, StallAfter: -1, OwnerName: p.name + ":",
		Events: Events{
			Cause: func(_ *Hold, l *Loss) error { return lossError{l} },
			Retried: func(_ context.Context, _ *Request, _ int, err error) {
				note(func() { p.retried = append(p.retried, err) })
			},
			Renewed: func(locks, renewed int, _ time.Duration, err error, _ Renewer) {
				note(func() { p.renewed = append(p.renewed, renewedAt{locks, renewed, err}) })
			},
			Lost: func(h *Hold, l *Loss) {
				note(func() { p.lost, p.losers = append(p.lost, l), append(p.losers, h.Owner()) })
			},
			Stalled: func(r *Request, s Stall) {
				note(func() { p.stalls = append(p.stalls, stallAt{s, w.now(), r.ID.Key}) })
			},
		},
	}
	for _, f := range change {
		f(&c)
	}
	p.Keeper = NewKeeper(c)
	w.procs = append(w.procs, p)
	return p
}

// told reads what the process was told of.
func told[T any](p *proc, of *[]T) []T {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(*of)
}

// terms are terms with a lease, and whatever the functions change.
func terms(lease time.Duration, change ...func(t *Terms)) Terms {
	t := Terms{Lease: lease, Grace: 2 * lease}
	for _, f := range change {
		f(&t)
	}
	return t
}

func handoff(n int) func(t *Terms) { return func(t *Terms) { t.Handoff = n } }
func fixed(t *Terms)               { t.Fixed = true }
func fencing(t *Terms)             { t.Fencing = true }

// request asks for a lock.
func (w *world) request(key string, t Terms) *Request {
	r := &Request{ID: ID{"fake", key}, Terms: &t}
	s := &store{server: w.server, key: key, terms: r.Terms}
	if r.Store = s; w.succeeds {
		r.Store = pair{s}
	}
	return r
}

// limit is the end of a lease that was asked for at sent.
func limit(sent, lease time.Duration) time.Duration {
	return sent + lease - lease/100 - 2*time.Millisecond
}

// A held is a lease, as the caller of a lock has it.
type held struct {
	*Hold
	m   Member
	p   *proc
	r   Result
	ctx context.Context

	mu    sync.Mutex
	ended time.Duration // when its context was ended
}

// join makes l a lease of h. Its context ends by the keeper's hand only.
func (p *proc) join(ctx context.Context, h *Hold) *held {
	l := &held{Hold: h, p: p}
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	l.ctx = inner
	h.Join(ctx, &l.m, func(cause error) {
		l.mu.Lock()
		if l.ended == 0 {
			l.ended = p.w.now()
		}
		l.mu.Unlock()
		cancel(cause)
	})
	return l
}

func (l *held) endedAt() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

func (l *held) unlock() error {
	_, err := l.Unlock(context.Background(), &l.m)
	return err
}

func (l *held) state() State             { return l.State(&l.m) }
func (l *held) remaining() time.Duration { return l.Remaining(&l.m) }

// reason is why the lease ended, "" if it did not.
func (l *held) reason() fault.Reason {
	var e lossError
	if errors.As(context.Cause(l.ctx), &e) {
		return e.Reason
	}
	return ""
}

func (p *proc) acquire(ctx context.Context, r *Request, once bool) (*held, error) {
	res, err := p.Acquire(ctx, r, once)
	if err != nil {
		require.Nil(p.w, res.Hold)
		return nil, err
	}
	l := p.join(ctx, res.Hold)
	l.r = res
	return l, nil
}

// lock takes a lock that has to be had.
func (p *proc) lock(r *Request) *held {
	p.w.Helper()
	l, err := p.acquire(context.Background(), r, false)
	require.NoError(p.w, err)
	return l
}

func (p *proc) enter(l *held) (*held, int, error) {
	n, err := l.Enter(context.Background(), 0)
	if err != nil {
		return nil, 0, err
	}
	return p.join(context.Background(), l.Hold), n, nil
}

// An answer is how an acquire on a goroutine of its own ended.
type answer struct {
	*held
	err error
	at  time.Duration
}

func (p *proc) begin(ctx context.Context, r *Request, once bool) chan answer {
	c := make(chan answer, 1)
	go func() {
		l, err := p.acquire(ctx, r, once)
		c <- answer{l, err, p.w.now()}
	}()
	synctest.Wait()
	return c
}

// got is the answer if it has come.
func got(c chan answer) (answer, bool) {
	synctest.Wait()
	select {
	case a := <-c:
		return a, true
	default:
		return answer{}, false
	}
}

// until sleeps until the server's clock shows at.
func (w *world) until(at time.Duration) { time.Sleep(at - w.now()) }

// eventually waits, for a minute of the bubble at most, until ok.
func (w *world) eventually(ok func() bool, what string) {
	w.Helper()
	for range 60_000 {
		synctest.Wait()
		if ok() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	require.FailNow(w, "did not come about: "+what)
}

func times(cmds []cmd) (at []time.Duration) {
	for _, c := range cmds {
		at = append(at, c.at)
	}
	return at
}

func owners(cmds []cmd) []string {
	all := map[string]bool{}
	for _, c := range cmds {
		all[c.owner] = true
	}
	return slices.Sorted(maps.Keys(all))
}

func keys(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("lock %05d", i))
	}
	return all
}
