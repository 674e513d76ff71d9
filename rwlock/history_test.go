package rwlock_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/history"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/rwlock"
)

const (
	crowdLease = 30 * time.Second       // so long that an orphan or a sleeper cannot hide
	dueLease   = 250 * time.Millisecond // renewed while it is held
	shortLease = 60 * time.Millisecond  // not renewed, and sometimes outlived
)

// A person is one worker of a history: it takes a few locks in every way there is.
type person struct {
	client           *history.Client
	rng              *rand.Rand
	lock, due, short *rwlock.Lock
	names            int
}

func (p *person) visit() {
	name := strconv.Itoa(p.rng.IntN(p.names))
	l, work := p.lock.For(name), time.Duration(p.rng.IntN(300))*time.Microsecond
	switch n := p.rng.IntN(1000); {
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
	reading, writing := history.Side{Locker: l.Reader(), Which: history.ReadSide}, history.Side{Locker: l.Writer(), Which: history.WriteSide}
	side := reading
	if p.rng.IntN(10) < 3 {
		side = writing
	}
	take := p.client.Lock
	if p.rng.IntN(4) == 0 {
		take = p.client.TryLock
	}
	held, lease, err := take(ctx, side)
	if err != nil {
		return // what it may say is checked later
	}
	leases := []*history.Held{lease}
	switch n := p.rng.IntN(10); {
	case side.Which == history.WriteSide && n < 3: // it becomes a reader, with no lease but this
		_, read, err := p.client.Downgrade(ctx, lease, l.Writer().Downgrade)
		if leases = nil; err == nil {
			leases = append(leases, read)
		}
	case side.Which == history.WriteSide && n < 5: // it reads as well
		if _, own, err := p.client.Lock(held, reading); err == nil {
			leases = append(leases, own)
		}
	case side.Which == history.ReadSide && n < 1:
		_ = p.client.Upgrade(held, writing, lease, rwlock.ErrUpgrade)
	case n < 7:
		for p.rng.IntN(5) < 2 && len(leases) < 4 {
			inner, nested, err := p.client.Lock(held, side)
			if err != nil {
				break
			}
			held, leases = inner, append(leases, nested)
		}
	}
	if work > time.Millisecond || p.rng.IntN(4) == 0 {
		time.Sleep(work)
	}
	if p.rng.IntN(10) == 0 {
		cancel() // Unlock is called all the same
	}
	p.rng.Shuffle(len(leases), func(i, j int) { leases[i], leases[j] = leases[j], leases[i] })
	for _, lease := range leases {
		_ = p.client.Unlock(ctx, lease)
	}
}

// historyOps is how many operations a history has, and the time after which a machine
// that is too slow for so many may stop; if HOLDFAST_HISTORY_OPS says how many, there is
// no such time.
func historyOps(t *testing.T) (n int, limit time.Duration) {
	t.Helper()
	text := os.Getenv("HOLDFAST_HISTORY_OPS")
	if text == "" {
		return 20_000, 30 * time.Second
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "HOLDFAST_HISTORY_OPS")
	return n, 0
}

func TestHistory_lostRepliesKillsAndCancels(t *testing.T) {
	srv := redistest.Run(t)
	proxy := redistest.NewProxy(t, srv.Addr())
	recorder := &history.Recorder{}
	want, limit := historyOps(t)
	began := time.Now()
	var wg sync.WaitGroup
	var sessions []*holdfast.Session
	for s := range 4 {
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{proxy.Addr()}, DisableCache: true,
			ClientSetInfo: rueidis.DisableClientSetInfo, RingScaleEachConn: 6, ReadBufferEachConn: 1 << 13, WriteBufferEachConn: 1 << 13,
		})
		require.NoError(t, err)
		t.Cleanup(client.Close)
		hf := sessionOn(t, client, holdfast.SessionOptions{Observer: history.Observer(), Logger: slog.New(slog.DiscardHandler)})
		sessions = append(sessions, hf)
		for w := range 4 {
			p := &person{
				client: recorder.Client(strconv.Itoa(s)), rng: rand.New(rand.NewPCG(uint64(s), uint64(w))), names: 6,
				lock:  newLock(t, hf, key(t), holdfast.Options{Lease: crowdLease, Fencing: true}),
				due:   newLock(t, hf, key(t), holdfast.Options{Lease: dueLease, Fencing: true}),
				short: newLock(t, hf, key(t), holdfast.Options{Lease: shortLease, Fencing: true, Fixed: true}),
			}
			wg.Go(func() {
				for recorder.Len() < want && (limit == 0 || time.Since(began) < limit) {
					p.visit()
				}
			})
		}
	}
	done := make(chan struct{})
	go func() { // replies are lost, and connections killed
		defer close(done)
		proxy.DropReplies(0.03, rand.New(rand.NewPCG(1, 2)))
		for recorder.Len() < want && (limit == 0 || time.Since(began) < limit) {
			time.Sleep(100 * time.Millisecond)
			proxy.KillAll()
		}
		proxy.DropReplies(0, nil)
	}()
	wg.Wait()
	<-done
	for _, hf := range sessions {
		stats := hf.Stats()
		require.Zero(t, stats.Held+stats.Waiting, "%+v", stats)
	}
	redistest.Eventually(t, 10*time.Second, "no lock is left", func() bool {
		return len(srv.Keys(t, key(t)+":*")) == 0
	})
	ops := recorder.Ops()
	checked := time.Now()
	require.NoError(t, history.Check(history.RW{}, ops, time.Minute))
	kinds, at := map[string]int{}, map[string]int{}
	under := 0
	longest := time.Duration(0)
	for _, op := range ops {
		if op.Verb == history.Lock {
			longest = max(longest, time.Duration(op.Return-op.Call))
		}
		kinds[op.Side+" "+string(op.Verb)+" "+string(op.Outcome)]++
		if op.Outcome == history.Done && (op.Verb == history.Lock || op.Verb == history.TryLock) {
			at[op.Owner]++
		}
		if op.Under != "" {
			under++
		}
	}
	shared := 0
	for _, n := range at {
		if n > 1 {
			shared++
		}
	}
	t.Logf("%d operations in %v, checked in %v: %v; %d owners were shared, %d reads of writers",
		len(ops), checked.Sub(began).Round(time.Millisecond), time.Since(checked).Round(time.Millisecond), kinds, shared, under)
	for _, kind := range []string{"read Lock done", "write Lock done", "read Nested done", "write Nested done", "write Downgrade done", "read Upgrade refused"} {
		require.NotZero(t, kinds[kind], kind)
	}
	require.NotZero(t, under)
	require.NotZero(t, shared)
	// Sections are short, and what an attempt left is swept away after 4 s at the latest.
	t.Logf("the longest wait was %v", longest)
	require.Less(t, longest, 10*time.Second)
	const all = 1000 // readers
	require.NoError(t, history.Oracle(history.LiveRW(ops, all), all))
}

// A holder that does not heed the end of its context writes late; the fence refuses it.
// Tokens of writers, in between which readers read, rise as those of a plain lock do.
func TestHistory_tokensOfManyProcessesRise(t *testing.T) {
	var mu sync.Mutex
	last := uint64(0)
	var wg sync.WaitGroup
	for range 4 {
		l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Fencing: true})
		for range 4 {
			wg.Go(func() {
				for range 25 {
					_ = l.Reader().Do(context.Background(), func(context.Context) error { return nil })
					err := l.Writer().Do(within(t, 20*time.Second), func(ctx context.Context) error {
						mu.Lock()
						defer mu.Unlock()
						token := l.Writer().Held(ctx).Token()
						if token <= last {
							return errors.New("a token that does not rise")
						}
						last = token
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
}
