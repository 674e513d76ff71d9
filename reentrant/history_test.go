package reentrant_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/history"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/reentrant"
)

// A crowd is the workload of these tests: workers of a few sessions that take a
// few locks in every way there is.
type crowd struct {
	srv      *redistest.Server
	record   *history.Record
	recorder *history.Recorder
	sessions []*holdfast.Session
	workers  int // of each session
	names    int
	ops      int           // to be recorded
	limit    time.Duration // to stop after, whatever was recorded; 0: never
	forced   bool          // somebody removes locks, so that counts say nothing
	counts   atomic.Int64  // that were compared with the server's
}

const (
	crowdLease = 30 * time.Second       // so long that an orphan or a sleeper cannot hide
	dueLease   = 250 * time.Millisecond // renewed while it is held
	shortLease = 60 * time.Millisecond  // not renewed, and sometimes outlived
	watcher    = "watcher"              // the user that the record is read as
)

// gather returns a crowd of sessions that reach srv at addr.
func gather(t *testing.T, srv *redistest.Server, addr string, options []holdfast.SessionOptions, mod ...func(*rueidis.ClientOption)) *crowd {
	t.Helper()
	srv.Do(t, "ACL", "SETUSER", watcher, "on", ">"+watcher, "+@all", "allkeys", "allchannels")
	record, err := history.Watch(srv.Addr(), watcher, watcher)
	require.NoError(t, err)
	t.Cleanup(func() { _ = record.Stop() })
	c := &crowd{srv: srv, record: record, recorder: &history.Recorder{}, workers: 5, names: 6, ops: 1 << 30}
	for _, o := range options {
		to := rueidis.ClientOption{
			InitAddress: []string{addr}, DisableCache: true,
			ClientSetInfo: rueidis.DisableClientSetInfo, RingScaleEachConn: 6, ReadBufferEachConn: 1 << 13, WriteBufferEachConn: 1 << 13, // there will be thousands
		}
		for _, m := range mod {
			m(&to)
		}
		client, err := rueidis.NewClient(to)
		require.NoError(t, err)
		t.Cleanup(client.Close)
		o.Observer, o.Logger = history.Observer(), slog.New(slog.DiscardHandler)
		c.sessions = append(c.sessions, sessionOn(t, client, o))
	}
	return c
}

// run has the crowd at work until there are enough operations or the time is up.
func (c *crowd) run(t *testing.T) {
	t.Helper()
	began := time.Now()
	var wg sync.WaitGroup
	for s, hf := range c.sessions {
		for w := range c.workers {
			p := &person{
				crowd: c, client: c.recorder.Client(strconv.Itoa(s)), rng: rand.New(rand.NewPCG(uint64(s), uint64(w))),
				lock:  newLock(t, hf, key(t), holdfast.Options{Lease: crowdLease, Fencing: true}),
				due:   newLock(t, hf, key(t), holdfast.Options{Lease: dueLease, Fencing: true}),
				short: newLock(t, hf, key(t), holdfast.Options{Lease: shortLease, Fencing: true, Fixed: true}),
			}
			wg.Go(func() {
				for c.recorder.Len() < c.ops && (c.limit == 0 || time.Since(began) < c.limit) {
					if err := p.visit(); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	t.Logf("%d operations in %v, %d counts compared", c.recorder.Len(), time.Since(began).Round(time.Millisecond), c.counts.Load())
}

// A person is one worker.
type person struct {
	*crowd
	client           *history.Client
	rng              *rand.Rand
	lock, due, short *reentrant.Lock
}

// visit is one turn with one lock.
func (p *person) visit() error {
	name := strconv.Itoa(p.rng.IntN(p.names))
	l := p.lock.For(name)
	work := time.Duration(p.rng.IntN(300)) * time.Microsecond
	switch n := p.rng.IntN(1000); { // rarely, since all others soon wait for the same lock
	case n == 0:
		l, work = p.due.For(name), dueLease/2+time.Duration(p.rng.Int64N(int64(dueLease)))
	case n < 4:
		l, work = p.short.For(name), shortLease+time.Duration(p.rng.IntN(10))*time.Millisecond
	case n < 50:
		l = p.short.For(name)
	}
	bound := 30 * time.Second
	if p.rng.IntN(6) == 0 {
		bound = time.Duration(p.rng.IntN(5000)) * time.Microsecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	take := p.client.Lock
	if p.rng.IntN(4) == 0 {
		take = p.client.TryLock
	}
	held, lease, err := take(ctx, l)
	if err != nil {
		return nil // what it may say is checked later
	}
	leases := []*history.Held{lease}
	for p.rng.IntN(5) < 2 && len(leases) < 4 {
		inner, nested, err := p.client.Lock(held, l)
		if err != nil {
			break
		}
		held, leases = inner, append(leases, nested)
		if err := p.probe(nested, len(leases)); err != nil {
			return err
		}
	}
	if work > time.Millisecond || p.rng.IntN(4) == 0 {
		time.Sleep(work)
	}
	if p.rng.IntN(10) == 0 {
		cancel() // Unlock is called all the same
	}
	lease.Check()
	p.rng.Shuffle(len(leases), func(i, j int) { leases[i], leases[j] = leases[j], leases[i] })
	for i, lease := range leases {
		err := p.client.Unlock(ctx, lease)
		if left := len(leases) - 1 - i; err == nil && left > 0 {
			if err := p.probe(leases[i+1], left); err != nil {
				return err
			}
		}
	}
	return nil
}

// probe compares the count in Redis with what it must be, now and then.
func (p *person) probe(lease *history.Held, want int) error {
	if p.srv == nil || p.forced || p.rng.IntN(20) > 0 {
		return nil
	}
	if have := lease.Holds(); have != want && lease.Valid() {
		return fmt.Errorf("%s: %d holds here, and there must be %d", lease.Owner(), have, want)
	}
	have, err := p.srv.TryDo("HGET", lease.Name(), lease.Owner())
	if err != nil || lease.Remaining() == 0 {
		return nil
	}
	p.counts.Add(1)
	if have != strconv.Itoa(want) {
		return fmt.Errorf("%s: the server counts %s holds, and there must be %d", lease.Owner(), have, want)
	}
	return nil
}

// sober checks the history of a crowd, and that nothing is left of it. It returns
// the operations.
func (c *crowd) sober(t *testing.T, slowest time.Duration) []history.Op {
	t.Helper()
	for _, hf := range c.sessions {
		stats := hf.Stats()
		require.Zero(t, stats.Held+stats.Waiting, "%+v", stats)
	}
	// Condemned owners are looked for at once and after 0.25 and 1 seconds; what they
	// took after that would be the work of a command that was under way for seconds.
	redistest.Eventually(t, 20*time.Second, "no lock is left", func() bool { return len(c.srv.Keys(t, key(t)+":*")) == 0 })
	require.NoError(t, c.record.Stop())
	ops := c.recorder.Ops()
	c.linearizable(t, ops)
	live := history.Live(ops)
	require.NoError(t, history.Oracle(live, 1))
	require.NoError(t, c.record.Covers(live))
	delays := c.record.Delays(ops)
	late := 0
	for late < len(delays) && delays[late].For > 100*time.Millisecond {
		late++
	}
	require.NotEmpty(t, delays)
	t.Logf("%d waits for a lock that was free, %d of them longer than 100ms; the longest: %v", len(delays), late, delays[0])
	require.Less(t, delays[0].For, slowest)
	if orphans := c.record.Orphans(ops); len(orphans) > 0 {
		longest, long := time.Duration(orphans[0].To-orphans[0].From), 0
		for long < len(orphans) && orphans[long].To-orphans[long].From > int64(100*time.Millisecond) {
			long++
		}
		t.Logf("%d grants to callers that had left, %d of them stayed longer than 100ms, the longest %v", len(orphans), long, longest)
		require.Less(t, longest, 10*time.Second)
	}
	return ops
}

func (c *crowd) linearizable(t *testing.T, ops []history.Op) {
	t.Helper()
	began := time.Now()
	require.NoError(t, history.Check(history.Mutex{Taken: c.record.Taken}, ops, time.Minute))
	kinds := map[string]int{}
	handoffs, periods := 0, 0
	for _, op := range ops {
		kinds[string(op.Verb)+" "+string(op.Outcome)]++
		if op.Handoff {
			handoffs++
		}
	}
	for i := range c.names {
		periods += len(c.record.Periods(key(t) + ":" + strconv.Itoa(i)))
	}
	t.Logf("%d operations checked in %v: %v, %d by handoff; the server saw %d owners",
		len(ops), time.Since(began).Round(time.Millisecond), kinds, handoffs, periods)
	require.NotZero(t, kinds["Lock done"])
	require.NotZero(t, kinds["Nested done"])
}

// doubtful are the Unlocks that found a loss which nothing explains: the lease was
// valid before and had time left after.
func doubtful(ops []history.Op) (n int) {
	for _, op := range ops {
		if op.Verb == history.Unlock && op.Outcome == history.Lost && op.LostAt > op.Call && op.Until > op.LostAt {
			n++
		}
	}
	return n
}

// each calls fault every so often for the time of the test, as long as stop is not
// called.
func each(every time.Duration, fault func()) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				fault()
			case <-done:
				return
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

func plainAndReceipts(n int) (o []holdfast.SessionOptions) {
	for i := range n {
		o = append(o, holdfast.SessionOptions{Receipts: i%2 == 1})
	}
	return o
}

// historyOps is how many operations the large history has, and the time after
// which a machine that is too slow for so many may stop; if HOLDFAST_HISTORY_OPS
// says how many, there is no such time.
func historyOps(t *testing.T) (n int, limit time.Duration) {
	t.Helper()
	text := os.Getenv("HOLDFAST_HISTORY_OPS")
	if text == "" {
		return 50_000, 35 * time.Second
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "HOLDFAST_HISTORY_OPS")
	return n, 0
}

func TestHistory_lostReplies(t *testing.T) {
	b := breakable(t)
	c := gather(t, b.Server, b.proxy.Addr(), plainAndReceipts(4))
	c.workers, c.names = 4, 8
	c.ops, c.limit = historyOps(t)
	b.proxy.DropReplies(0.1, rand.New(rand.NewPCG(1, 2)))
	c.run(t)
	b.proxy.DropReplies(0, nil)
	ops := c.sober(t, 10*time.Second)
	require.Zero(t, doubtful(ops))
}

func TestHistory_connectionsOfShortLife(t *testing.T) {
	for _, receipts := range []bool{true, false} {
		t.Run(fmt.Sprint("receipts=", receipts), func(t *testing.T) {
			srv := redistest.Run(t)
			o := []holdfast.SessionOptions{{Receipts: receipts}, {Receipts: receipts}}
			c := gather(t, srv, srv.Addr(), o, func(o *rueidis.ClientOption) { o.ConnLifetime = time.Second })
			c.limit = 2 * time.Second
			c.run(t)
			ops := c.sober(t, 10*time.Second)
			n := doubtful(ops)
			t.Logf("%d false losses", n)
			if receipts {
				require.Zero(t, n)
			}
		})
	}
}

func TestHistory_scriptFlush(t *testing.T) {
	srv := redistest.Run(t)
	c := gather(t, srv, srv.Addr(), plainAndReceipts(2))
	c.limit = 2 * time.Second
	stop := each(50*time.Millisecond, func() { srv.Do(t, "SCRIPT", "FLUSH") })
	c.run(t)
	stop()
	require.Zero(t, doubtful(c.sober(t, 10*time.Second)))
}

func TestHistory_clientKill(t *testing.T) {
	srv := redistest.Run(t)
	c := gather(t, srv, srv.Addr(), plainAndReceipts(2))
	c.limit = 2 * time.Second
	stop := each(50*time.Millisecond, func() {
		for _, which := range []string{"normal", "pubsub"} {
			srv.Do(t, "CLIENT", "KILL", "TYPE", which, "USER", "default", "SKIPME", "yes")
		}
	})
	c.run(t)
	stop()
	require.Zero(t, doubtful(c.sober(t, 10*time.Second)))
}

// A server that nothing is wrong with: what the faults are compared with.
func TestHistory_noFault(t *testing.T) {
	srv := redistest.Run(t)
	c := gather(t, srv, srv.Addr(), plainAndReceipts(2))
	c.limit = 2 * time.Second
	c.run(t)
	require.Zero(t, doubtful(c.sober(t, 10*time.Second)))
}

func TestHistory_forceUnlock(t *testing.T) {
	srv := redistest.Run(t)
	c := gather(t, srv, srv.Addr(), plainAndReceipts(2))
	c.limit = 2 * time.Second
	c.forced = true
	operator := c.recorder.Client("operator")
	hf := session(t, srv.Addr())
	i := 0
	stop := each(20*time.Millisecond, func() {
		l := newLock(t, hf, key(t)).For(strconv.Itoa(i % c.names))
		i++
		if err := operator.Force(context.Background(), l.Name(), l.ForceUnlock); err != nil {
			t.Error(err)
		}
	})
	c.run(t)
	stop()
	require.NoError(t, c.record.Stop())
	c.linearizable(t, c.recorder.Ops())
}

// historyChild is a process of TestHistory_processes: it works until it is told to
// stop, and then says what it saw.
func historyChild() {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{os.Getenv("ADDR")}, DisableCache: true})
	if err != nil {
		panic(err)
	}
	hf, err := holdfast.New(client, holdfast.SessionOptions{Observer: history.Observer(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	c := &crowd{recorder: &history.Recorder{}, names: 3}
	stop, cancel := context.WithCancel(context.Background())
	go func() {
		<-redistest.Listen()
		cancel()
	}()
	var wg sync.WaitGroup
	for w := range 3 {
		p := &person{crowd: c, client: c.recorder.Client(strconv.Itoa(os.Getpid())), rng: rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(w)))}
		for at, o := range map[**reentrant.Lock]holdfast.Options{
			&p.lock:  {Lease: dueLease, Fencing: true},
			&p.due:   {Lease: dueLease, Fencing: true},
			&p.short: {Lease: shortLease, Fencing: true, Fixed: true},
		} {
			if *at, err = reentrant.New(hf, os.Getenv("NAME"), o); err != nil {
				panic(err)
			}
		}
		wg.Go(func() {
			for stop.Err() == nil {
				if err := p.visit(); err != nil {
					panic(err)
				}
			}
		})
	}
	redistest.Say("working")
	wg.Wait()
	for _, op := range c.recorder.Ops() {
		line, err := json.Marshal(op)
		if err != nil {
			panic(err)
		}
		redistest.Say("op %s", line)
	}
	redistest.Say("end")
}

// The roles are in a map, and this one is needed before TestMain looks.
var _ = func() bool {
	roles["history"] = historyChild
	return true
}()

// Several processes, one of which stands still past its leases again and again.
// While it does, it cannot see its contexts end: so what is live there until then
// is not asked about, but everything must still have an order.
func TestHistory_processesThatStandStill(t *testing.T) {
	srv := redistest.Run(t)
	record, err := history.Watch(srv.Addr())
	require.NoError(t, err)
	var children []*redistest.Process
	for range 3 {
		children = append(children, redistest.Child(t, "history", "ADDR="+srv.Addr(), "NAME="+key(t)))
	}
	for _, child := range children {
		child.Line("working", 20*time.Second)
	}
	for range 4 {
		time.Sleep(100 * time.Millisecond)
		children[0].Stop()
		time.Sleep(400 * time.Millisecond)
		children[0].Continue()
	}
	for _, child := range children {
		child.Send("stop")
	}
	var ops []history.Op
	for _, child := range children {
		for line := ""; line != "end"; {
			line = child.Line("", 30*time.Second)
			if text, ok := strings.CutPrefix(line, "op "); ok {
				var op history.Op
				require.NoError(t, json.Unmarshal([]byte(text), &op))
				ops = append(ops, op)
			}
		}
	}
	require.NoError(t, record.Stop())
	lost := 0
	for _, v := range history.Live(ops) {
		if v.Lost {
			lost++
		}
	}
	t.Logf("%d operations of %d processes, %d holds lost", len(ops), len(children), lost)
	require.NoError(t, history.Check(history.Mutex{Taken: record.Taken}, ops, time.Minute))
	require.NoError(t, history.Oracle(history.Live(ops), 1))
}

// Holders that do not heed the end of their contexts write late. The fence refuses
// them; what happens without is only counted.
func TestHistory_guardedRegister(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		t.Run(fmt.Sprint("fence=", fenced), func(t *testing.T) {
			recorder := &history.Recorder{}
			var clients []*history.Client
			var locks []history.Locker
			for s := range 2 {
				hf := session(t, redisAddr, holdfast.SessionOptions{Observer: history.Observer(), Logger: slog.New(slog.DiscardHandler)})
				l := newLock(t, hf, key(t), holdfast.Options{Lease: 40 * time.Millisecond, Fixed: true, Fencing: true})
				for range 4 {
					clients, locks = append(clients, recorder.Client(strconv.Itoa(s))), append(locks, l)
				}
			}
			const each = 40
			register := &history.Register{Fence: fenced}
			tally, err := register.Increment(within(t, 30*time.Second), clients, locks, each, func(client, i int) {
				time.Sleep(500 * time.Microsecond)
				if (i+5*client)%20 == 19 { // it stands still
					time.Sleep(60 * time.Millisecond)
				}
			})
			require.NoError(t, err)
			t.Logf("%d increments written, %d refused by the fence, %d lost", tally.Done, tally.Stale, tally.Lost)
			require.Equal(t, len(clients)*each, tally.Done+tally.Stale)
			if fenced {
				require.Zero(t, tally.Lost)
				require.NotZero(t, tally.Stale, "nobody was late")
			} else {
				require.Zero(t, tally.Stale)
			}
			ops := recorder.Ops()
			require.NoError(t, history.Check(history.Mutex{}, ops, time.Minute))
			require.NoError(t, history.Oracle(history.Live(ops), 1))
		})
	}
}
