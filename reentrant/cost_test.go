package reentrant_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/reentrant"
)

// What locks cost, counted by the server itself. None of these is a race against
// the clock: they count commands.

func TestCost_uncontendedPairIsTwoCommands(t *testing.T) {
	srv := redistest.Run(t)
	hf := session(t, srv.Addr())
	l := newLock(t, hf, key(t))
	require.NoError(t, l.Do(context.Background(), func(context.Context) error { return nil })) // the scripts are known now

	before := srv.Calls(t)
	const pairs = 100
	for range pairs {
		require.NoError(t, l.Do(context.Background(), func(context.Context) error { return nil }))
	}
	calls := srv.Calls(t).Since(before)
	require.EqualValues(t, 2*pairs, calls.Scripts())
	require.Zero(t, calls.Of("subscribe", "ssubscribe", "get", "script|load", "eval"))
	require.Empty(t, srv.Keys(t, "*"))
}

func TestCost_aSessionSendsNothingAtItsStart(t *testing.T) {
	srv := redistest.Run(t)
	client := connect(t, srv.Addr())
	require.NoError(t, client.Do(context.Background(), client.B().Ping().Build()).Error())
	before := srv.Calls(t)
	goroutinesBefore := goroutines()
	hf := sessionOn(t, client)
	newLock(t, hf, key(t)).For("1")
	require.NoError(t, hf.Close(context.Background()))
	calls := srv.Calls(t).Since(before)
	delete(calls, "ping")
	require.Empty(t, calls)
	redistest.Eventually(t, 10*time.Second, "no goroutine is left", func() bool { return goroutines() <= goroutinesBefore })
}

func TestCost_theClientsPipelinesCarryAllCallers(t *testing.T) {
	srv := redistest.Run(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{srv.Addr()}, DisableCache: true, ClientName: "callers"})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	hf := sessionOn(t, client)
	l := newLock(t, hf, key(t))
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			for range 5 {
				_ = l.For(fmt.Sprint(i)).Do(context.Background(), func(context.Context) error { return nil })
			}
		})
	}
	wg.Wait()
	// A client spreads its pipelines over up to four connections.
	require.LessOrEqual(t, strings.Count(srv.Do(t, "CLIENT", "LIST"), "name=callers"), 4)
}

func TestCost_aThousandWaitersAskThreeTimes(t *testing.T) {
	srv := redistest.Run(t)
	_, lease := lock(t, newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Lease: 30 * time.Second, Fixed: true}))
	defer lease.Unlock(context.Background())

	hf := session(t, srv.Addr())
	l := newLock(t, hf, key(t))
	_, _, err := l.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	base := goroutines()
	before := srv.Calls(t)
	ctx := within(t, 5*time.Second)
	var wg sync.WaitGroup
	var refused atomic.Int64
	const callers = 1000
	for range callers {
		wg.Go(func() {
			if _, _, err := l.Lock(ctx); err != nil {
				refused.Add(1)
			}
		})
	}
	waiting(t, hf, callers)
	// At most one goroutine each besides the caller's own; in fact none.
	require.LessOrEqual(t, goroutines()-base-callers, 20)
	wg.Wait()
	require.EqualValues(t, callers, refused.Load())
	calls := srv.Calls(t).Since(before)
	t.Logf("1000 waiters for 5s: %d scripts, %d subscribe", calls.Scripts(), calls.Of("subscribe"))
	// Three; on a slow machine also one every quarter of a second until the subscription
	// is confirmed.
	require.LessOrEqual(t, calls.Scripts(), int64(10))
	require.LessOrEqual(t, calls.Of("subscribe", "ssubscribe"), int64(1))
	subscribed(t, srv, 0)
}

func TestCost_aReleaseWakesOneCallerOfEachProcess(t *testing.T) {
	srv := redistest.Run(t)
	const processes, callers, turns = 3, 100, 100
	var locks []*reentrant.Lock
	for range processes {
		locks = append(locks, newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Handoff: -1}))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var left atomic.Int64
	left.Store(turns)
	var wg sync.WaitGroup
	before := srv.Calls(t)
	for _, l := range locks {
		for range callers {
			wg.Go(func() {
				for left.Load() > 0 {
					if err := l.Do(ctx, func(context.Context) error {
						time.Sleep(time.Millisecond) // a turn takes time, so that all others wait
						if left.Add(-1) == 0 {
							cancel()
						}
						return nil
					}); err != nil {
						return
					}
				}
			})
		}
	}
	wg.Wait()
	calls := srv.Calls(t).Since(before)
	releases := calls.Of("publish")
	acquires := calls.Scripts() - releases
	t.Logf("%d releases, %d acquire scripts: %.2f for each", releases, acquires, float64(acquires)/float64(releases))
	require.LessOrEqual(t, float64(acquires), float64(processes+2)*float64(releases)+float64(2*processes))
}

func TestCost_aContendedLockIsHandedOverWithoutRedis(t *testing.T) {
	srv := redistest.Run(t)
	hf := session(t, srv.Addr())
	l := newLock(t, hf, key(t))
	const callers, rounds = 64, 400
	before := srv.Calls(t)
	inside, counter := atomic.Int64{}, 0
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range rounds {
				err := l.Do(context.Background(), func(context.Context) error {
					if inside.Add(1) != 1 {
						t.Error("two inside")
					}
					counter++
					inside.Add(-1)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, callers*rounds, counter)
	calls := srv.Calls(t).Since(before)
	commands := calls.Scripts() + calls.Of("subscribe", "ssubscribe", "unsubscribe", "sunsubscribe")
	t.Logf("%.4f commands for each acquisition", float64(commands)/(callers*rounds))
	require.LessOrEqual(t, float64(commands)/(callers*rounds), 0.05)
}

func TestCost_anotherProcessGetsItsTurnAtTheBound(t *testing.T) {
	srv := redistest.Run(t)
	busy := newLock(t, session(t, srv.Addr()), key(t))
	other := newLock(t, session(t, srv.Addr()), key(t))
	stop, cancel := context.WithCancel(context.Background())
	defer cancel()
	var passed atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for stop.Err() == nil {
				_ = busy.Do(context.Background(), func(context.Context) error { passed.Add(1); return nil })
			}
		})
	}
	for turn := range 20 {
		before := passed.Load()
		require.NoError(t, other.Do(within(t, 10*time.Second), func(context.Context) error { return nil }), "turn %d", turn)
		// A run is 65 holds. Nobody knows of the other before it has subscribed, which
		// takes a slow machine the time of some runs; then one may be under way, and
		// another be won in the race for the message.
		require.LessOrEqual(t, passed.Load()-before, int64(100*65), "turn %d", turn)
	}
	t.Logf("20 turns beside %d of a process that never pauses", passed.Load())
	cancel()
	wg.Wait()
}

func TestCost_tenThousandHeldLocks(t *testing.T) {
	srv := redistest.Run(t)
	hf := session(t, srv.Addr())
	l := newLock(t, hf, key(t), holdfast.Options{Lease: 10 * time.Second})
	const locks = 10_000
	leases := make([]*holdfast.Lease, locks)
	_, first := lock(t, l.For("warm"))
	require.NoError(t, first.Unlock(context.Background()))
	base := goroutines()
	var wg sync.WaitGroup
	for part := range 100 {
		wg.Go(func() {
			for i := part; i < locks; i += 100 {
				_, lease, err := l.For(fmt.Sprint(i)).Lock(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				leases[i] = lease
			}
		})
	}
	wg.Wait()
	require.False(t, t.Failed())
	require.LessOrEqual(t, goroutines()-base, 100, "goroutines grow with locks")
	const spoilt = 4711
	srv.Do(t, "SET", leases[spoilt].Name(), "by hand")

	before, began := srv.Calls(t), time.Now()
	time.Sleep(30 * time.Second) // nine renewals of everything
	calls := srv.Calls(t).Since(before)
	t.Logf("10,000 locks for 30s: %d scripts", calls.Scripts())
	periods := time.Since(began).Seconds() / (10.0 / 3)
	require.LessOrEqual(t, float64(calls.Scripts()), periods*locks/100+60)
	require.LessOrEqual(t, goroutines()-base, 100, "goroutines grow with locks") // some are renewals under way
	for i, lease := range leases {
		require.Equal(t, i != spoilt, lease.Valid(), "lock %d", i)
	}
	require.ErrorIs(t, context.Cause(leases[spoilt].Context()), holdfast.ErrLost)
	for part := range 100 {
		wg.Go(func() {
			for i := part; i < locks; i += 100 {
				_ = leases[i].Unlock(context.Background())
			}
		})
	}
	wg.Wait()
	// What a starved machine has lost at last is there to the end of its lease.
	redistest.Eventually(t, 20*time.Second, "only the spoilt one is left", func() bool { return len(srv.Keys(t, "*")) == 1 })
	require.Equal(t, "string", srv.Do(t, "TYPE", leases[spoilt].Name()))
}

func TestCost_abandonedAttemptsLeaveNothing(t *testing.T) {
	srv := redistest.Run(t)
	hf := session(t, srv.Addr())
	l := newLock(t, hf, key(t))
	var got, not atomic.Int64
	storm := func(attempts int) {
		const callers = 64
		var wg sync.WaitGroup
		for c := range callers {
			rng := rand.New(rand.NewPCG(uint64(c), 4711))
			wg.Go(func() {
				for range attempts / callers {
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(400))*time.Microsecond)
					if rng.IntN(2) == 0 {
						time.AfterFunc(time.Duration(rng.IntN(200))*time.Microsecond, cancel)
					}
					_, lease, err := l.For(fmt.Sprint(rng.IntN(8))).Lock(ctx)
					if err == nil {
						got.Add(1)
						_ = lease.Unlock(ctx)
					} else {
						not.Add(1)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		subscribed(t, srv, 0)
		redistest.Eventually(t, 20*time.Second, "no key is left", func() bool { return len(srv.Keys(t, "*")) == 0 })
	}
	storm(2000) // the client has all its connections and goroutines from now on
	base := goroutines()
	storm(100_000)
	t.Logf("%d taken, %d given up", got.Load(), not.Load())
	redistest.Eventually(t, 10*time.Second, "no goroutine is left", func() bool { return goroutines() <= base })
	stats := hf.Stats()
	require.Zero(t, stats.Held+stats.Waiting, "%+v", stats)
}
