package reentrant_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/reentrant"
)

func TestLoad_nothingIsRenewedAfterUnlock(t *testing.T) {
	srv := redistest.Run(t)
	hf := session(t, srv.Addr())
	l := newLock(t, hf, key(t), holdfast.Options{Lease: 1500 * time.Millisecond})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for range 1000 {
				if err := l.For(fmt.Sprint(g)).Do(context.Background(), func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Empty(t, srv.Keys(t, "*"))
	before := srv.Calls(t)
	time.Sleep(1600 * time.Millisecond) // three periods
	require.Zero(t, srv.Calls(t).Since(before).Scripts())
}

func TestLoad_aLostLockIsNotAskedForAgain(t *testing.T) {
	srv := redistest.Run(t)
	ctx, _ := lock(t, newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Lease: time.Second}))
	srv.Do(t, "DEL", key(t))
	<-ctx.Done()
	before := srv.Calls(t)
	time.Sleep(1100 * time.Millisecond) // three periods
	require.Zero(t, srv.Calls(t).Since(before).Scripts())
}

func TestLoad_renewalsKeepUpOverASlowNetwork(t *testing.T) {
	b := breakable(t)
	hf := session(t, b.proxy.Addr())
	l := newLock(t, hf, key(t), holdfast.Options{Lease: 4 * time.Second})
	short := newLock(t, hf, key(t)+"-short", holdfast.Options{Lease: 2 * time.Second}) // beside long ones
	const locks = 2000
	leases := make([]*holdfast.Lease, 0, locks+20)
	var mu sync.Mutex
	var wg sync.WaitGroup
	take := func(l *reentrant.Lock) {
		_, lease, err := l.Lock(context.Background())
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		leases = append(leases, lease)
		mu.Unlock()
	}
	for part := range 50 {
		wg.Go(func() {
			for i := part; i < locks; i += 50 {
				take(l.For(fmt.Sprint(i)))
			}
		})
	}
	wg.Wait()
	for i := range 20 {
		take(short.For(fmt.Sprint(i)))
	}
	b.proxy.Delay(5 * time.Millisecond)
	base := goroutines()
	time.Sleep(5 * time.Second) // more than two short leases
	require.Less(t, goroutines()-base, 200)
	for _, lease := range leases {
		require.True(t, lease.Valid(), lease.Name())
	}
	b.proxy.Pass()
	for _, lease := range leases {
		wg.Go(func() { _ = lease.Unlock(context.Background()) })
	}
	wg.Wait()
	// What a starved machine has lost at last is there to the end of its lease.
	redistest.Eventually(t, 20*time.Second, "no key is left", func() bool { return len(b.Keys(t, "*")) == 0 })
}

func TestLoad_ownersOfOneLabelAreStrangers(t *testing.T) {
	o := holdfast.SessionOptions{Label: "worker"}
	a, b := newLock(t, session(t, redisAddr, o), key(t)), newLock(t, session(t, redisAddr, o), key(t))
	ctx, lease := lock(t, a)
	_, _, err := b.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.NoError(t, lease.Unlock(ctx))
}

func TestLoad_subscriptionsDoNotPileUp(t *testing.T) {
	srv := redistest.Run(t)
	theirs := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Fixed: true, Lease: time.Minute})
	mine := newLock(t, session(t, srv.Addr()), key(t))
	const names = 300
	for i := range names {
		_, _ = lock(t, theirs.For(fmt.Sprint(i)))
	}
	for range 3 {
		var wg sync.WaitGroup
		for i := range names {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
				defer cancel()
				_, _, _ = mine.For(fmt.Sprint(i)).Lock(ctx)
			})
		}
		wg.Wait()
		redistest.Eventually(t, 10*time.Second, "no channel is left", func() bool { return len(srv.Channels(t)) == 0 })
	}
}

func TestLoad_aSlowObserverCostsNoLock(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	hf := session(t, redisAddr, holdfast.SessionOptions{Observer: holdfast.Observer{
		Renewed: func(holdfast.Renewed) { <-over },
	}})
	t.Cleanup(func() { close(over) }) // before the session is closed
	l := newLock(t, hf, key(t), holdfast.Options{Lease: 1500 * time.Millisecond})
	ctx, lease := lock(t, l)
	for range 100 {
		server.Do(t, "PUBLISH", "redisson_lock__channel:{"+key(t)+"}", "0")
	}
	time.Sleep(1800 * time.Millisecond)
	require.NoError(t, ctx.Err())
	require.NoError(t, lease.Unlock(ctx))
}

func TestLoad_memoryDoesNotGrowWithNames(t *testing.T) {
	srv := redistest.Run(t)
	hf := session(t, srv.Addr())
	l := newLock(t, hf, key(t))
	run := func(from, to int) {
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := from + g/2; i < to; i += 4 {
					_ = l.For(fmt.Sprint(i)).Do(context.Background(), func(context.Context) error { return nil })
				}
			})
		}
		wg.Wait()
	}
	inUse := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	run(0, 2000)
	before := inUse()
	run(2000, 12_000)
	after := inUse()
	t.Logf("heap in use after 2,000 names: %d KiB, after 12,000: %d KiB", before>>10, after>>10)
	require.Less(t, int64(after)-int64(before), int64(2<<20))
}

func TestReplicas_X17_aGrantThatNobodyAcknowledgesIsUndone(t *testing.T) {
	srv := redistest.Run(t)
	l := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Replicas: 1, ReplicaTimeout: 50 * time.Millisecond})
	_, lease, err := l.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	require.ErrorContains(t, err, "acknowledged by 0 of 1 replicas")
	require.Nil(t, lease)
	_, _, err = l.Lock(within(t, 300*time.Millisecond))
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	require.NotErrorIs(t, err, holdfast.ErrNotAcquired)
	redistest.Eventually(t, 10*time.Second, "no key is left", func() bool { return len(srv.Keys(t, "*")) == 0 })
	other := newLock(t, session(t, srv.Addr()), key(t))
	ctx, theirs := lock(t, other)
	patient := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Replicas: 1, ReplicaTimeout: time.Minute})
	_, _, err = patient.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired, "a refusal waits for nobody")
	require.NoError(t, theirs.Unlock(ctx))
}

func TestReplicas_aGrantThatIsAcknowledgedIsReturned(t *testing.T) {
	srv := redistest.Run(t)
	replica := redistest.Run(t, redistest.Options{Args: []string{"--replicaof", "127.0.0.1 " + fmt.Sprint(srv.Port())}})
	srv.Do(t, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
	redistest.Eventually(t, 20*time.Second, "the replica is in step", func() bool {
		return strings.Contains(replica.Do(t, "INFO", "replication"), "master_link_status:up")
	})
	l := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Replicas: 1, Fencing: true})
	ctx, lease := lock(t, l)
	require.Equal(t, lease.Owner()+" 1", replica.Do(t, "HGETALL", key(t)), "it is there when Lock returns")
	require.NotZero(t, lease.Token())
	require.NoError(t, lease.Unlock(ctx))
}

// A storm: random calls that are cancelled at random moments, while connections
// are killed, scripts forgotten and the server stops for a moment. Whoever is
// inside with a valid lease must be alone; memory and goroutines stay flat; in the
// end nothing is left. make soak runs it for longer, as HOLDFAST_SOAK says.
func TestStorm(t *testing.T) {
	length := 8 * time.Second
	if s := os.Getenv("HOLDFAST_SOAK"); s != "" {
		var err error
		length, err = time.ParseDuration(s)
		require.NoError(t, err)
	}
	srv := redistest.Run(t)
	sessions := []*holdfast.Session{
		session(t, srv.Addr()),
		session(t, srv.Addr(), holdfast.SessionOptions{Receipts: true}),
	}
	const names = 5
	type oracle struct {
		mu     sync.Mutex
		inside *holdfast.Lease
		token  uint64
	}
	oracles := make([]oracle, names)
	stop, cancel := context.WithTimeout(context.Background(), length)
	defer cancel()
	var wg sync.WaitGroup
	var entered, lost, gaveUp atomic.Int64
	var errs sync.Map
	for g := range 50 {
		hf := sessions[g%2]
		rng := rand.New(rand.NewPCG(uint64(g), 1))
		locks := []*reentrant.Lock{
			newLock(t, hf, key(t), holdfast.Options{Lease: time.Second, Fencing: true}),
			newLock(t, hf, key(t), holdfast.Options{Lease: time.Second, Fencing: true, Fixed: true}),
			newLock(t, hf, key(t), holdfast.Options{Lease: time.Second, Fencing: true, MinHold: 5 * time.Millisecond}),
		}
		wg.Go(func() {
			for stop.Err() == nil {
				i := rng.IntN(names)
				l, o := locks[rng.IntN(len(locks))].For(fmt.Sprint(i)), &oracles[i]
				bound := time.Duration(rng.IntN(50)) * time.Millisecond
				if rng.IntN(4) == 0 {
					bound = 2 * time.Second
				}
				ctx, cancel := context.WithTimeout(context.Background(), bound)
				call := l.Lock
				if rng.IntN(4) == 0 {
					call = l.TryLock
				}
				held, lease, err := call(ctx)
				if err != nil {
					gaveUp.Add(1)
					if !errors.Is(err, holdfast.ErrNotAcquired) && !errors.Is(err, holdfast.ErrUnavailable) {
						errs.Store(err.Error(), true)
					}
					cancel()
					continue
				}
				entered.Add(1)
				o.mu.Lock()
				if o.inside != nil && o.inside.Valid() && lease.Valid() {
					errs.Store(fmt.Sprintf("two inside: %s and %s", o.inside.Owner(), lease.Owner()), true)
				}
				if lease.Valid() && lease.Token() <= o.token {
					errs.Store(fmt.Sprintf("token %d after %d", lease.Token(), o.token), true)
				}
				o.inside, o.token = lease, max(o.token, lease.Token())
				o.mu.Unlock()
				if rng.IntN(3) == 0 {
					if _, nested, err := l.Lock(held); err == nil {
						_ = nested.Unlock(held)
					}
				}
				if rng.IntN(3) == 0 {
					time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
				}
				o.mu.Lock()
				if o.inside == lease {
					o.inside = nil
				}
				o.mu.Unlock()
				if err := lease.Unlock(ctx); errors.Is(err, holdfast.ErrLost) {
					lost.Add(1)
				} else if err != nil && !errors.Is(err, holdfast.ErrUnknown) {
					errs.Store(err.Error(), true)
				}
				cancel()
			}
		})
	}
	faults := []func(){
		func() { srv.Do(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") },
		func() { srv.Do(t, "CLIENT", "KILL", "TYPE", "pubsub") },
		func() { srv.Do(t, "SCRIPT", "FLUSH") },
		func() { srv.Pause(); time.Sleep(100 * time.Millisecond); srv.Resume() },
	}
	type use struct{ goroutines, heap int }
	measure := func() (most use) { // the least of a few: both go up and down
		for range 20 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			now := use{runtime.NumGoroutine(), int(m.HeapAlloc)}
			if most == (use{}) {
				most = now
			}
			most = use{min(most.goroutines, now.goroutines), min(most.heap, now.heap)}
			time.Sleep(5 * time.Millisecond)
		}
		return most
	}
	began := time.Now()
	var early use
	for i := 0; stop.Err() == nil; i++ {
		faults[i%len(faults)]()
		if early == (use{}) && time.Since(began) > length/4 {
			early = measure()
		}
		for _, k := range srv.Keys(t, key(t)+":*") {
			require.NotEqual(t, "-1", srv.Do(t, "PTTL", k), "%s has no TTL", k)
		}
		time.Sleep(50 * time.Millisecond)
	}
	late := measure()
	wg.Wait()
	t.Logf("after a quarter %d goroutines and %d KiB, at the end %d and %d KiB", early.goroutines, early.heap>>10, late.goroutines, late.heap>>10)
	require.LessOrEqual(t, late.goroutines, early.goroutines+100)
	require.LessOrEqual(t, late.heap, early.heap+(8<<20))
	errs.Range(func(e, _ any) bool { t.Error(e); return true })
	t.Logf("%d entered, %d lost, %d gave up", entered.Load(), lost.Load(), gaveUp.Load())
	require.NotZero(t, entered.Load())
	redistest.Eventually(t, 20*time.Second, "no lock is left", func() bool { return len(srv.Keys(t, key(t)+":*")) == 0 })
	redistest.Eventually(t, 10*time.Second, "no channel is left", func() bool { return len(srv.Channels(t)) == 0 })
	for _, hf := range sessions {
		stats := hf.Stats()
		require.Zero(t, stats.Held+stats.Waiting, "%+v", stats)
	}
}
