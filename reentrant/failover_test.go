package reentrant_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

// What a holder and a waiter go through while slots move and primaries change:
// no error reaches a caller that has patience for it, and no two live contexts.

// busy takes and releases l in the loop of several callers until stop is called;
// it fails the test if two are inside with valid leases, or a call with patience
// gets an error.
func busy(t *testing.T, locks ...holdfast.Locker) (stop func() (turns int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var inside *holdfast.Lease
	turns := 0
	var wg sync.WaitGroup
	for _, l := range locks {
		for range 3 {
			wg.Go(func() {
				for ctx.Err() == nil {
					patient, done := context.WithTimeout(context.Background(), 40*time.Second)
					_, lease, err := l.Lock(patient)
					if err != nil {
						t.Errorf("an error surfaced: %v", err)
						done()
						return
					}
					mu.Lock()
					if inside != nil && inside.Valid() && lease.Valid() {
						t.Errorf("two inside: %s, %s", inside.Owner(), lease.Owner())
					}
					inside = lease
					turns++
					mu.Unlock()
					time.Sleep(time.Millisecond)
					mu.Lock()
					if inside == lease {
						inside = nil
					}
					mu.Unlock()
					_ = lease.Unlock(patient)
					done()
				}
			})
		}
	}
	return func() int {
		cancel()
		wg.Wait()
		return turns
	}
}

func TestFailover_aMovingSlotCostsNoLock(t *testing.T) {
	c := redistest.RunCluster(t)
	name := key(t)
	o := holdfast.Options{Lease: 3 * time.Second, Fencing: true}
	hf := sessionOn(t, c.Client(t))
	held := newLock(t, hf, "held{"+name+"}", o)
	ctx, lease := lock(t, held)
	stop := busy(t,
		newLock(t, sessionOn(t, c.Client(t)), "busy{"+name+"}", o),
		newLock(t, sessionOn(t, c.Client(t)), "busy{"+name+"}", o))
	slot := c.Slot("held{" + name + "}")
	from := c.Owner(slot)
	var to *redistest.Server
	for _, tag := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		if to = c.Primary(tag); to != from {
			break
		}
	}
	require.NotSame(t, from, to)
	for _, target := range []*redistest.Server{to, from} {
		move := c.BeginMove(t, slot, target)
		move.MoveKeys("held{" + name + "}") // its counter is still on the other side
		time.Sleep(1500 * time.Millisecond) // a renewal in the middle of it
		_, nested, err := held.Lock(ctx)
		require.NoError(t, err)
		require.NoError(t, nested.Unlock(ctx))
		move.Finish()
		time.Sleep(1500 * time.Millisecond)
	}
	require.NoError(t, ctx.Err(), "nothing was lost")
	require.NoError(t, lease.Unlock(ctx))
	require.NotZero(t, stop())
}

func TestFailover_aKilledPrimaryOfAClusterCostsPatienceOnly(t *testing.T) {
	c := redistest.RunCluster(t)
	name := key(t)
	o := holdfast.Options{Lease: 15 * time.Second, Fencing: true}
	held := newLock(t, sessionOn(t, c.Client(t)), "held{"+name+"}", o)
	ctx, lease := lock(t, held)
	slot := c.Slot("held{" + name + "}")
	c.Owner(slot).WaitInStep(t, c.Replicas(slot)...) // so the replica has the lock
	stop := busy(t, newLock(t, sessionOn(t, c.Client(t)), "busy{"+name+"}", holdfast.Options{Lease: 2 * time.Second, Fencing: true}))
	c.KillPrimary(t, slot)
	time.Sleep(3 * time.Second)
	require.NoError(t, ctx.Err())
	_, nested, err := held.Lock(ctx)
	require.NoError(t, err)
	require.NoError(t, nested.Unlock(ctx))
	time.Sleep(6 * time.Second) // renewed on the new primary
	require.NoError(t, ctx.Err())
	require.NoError(t, lease.Unlock(ctx))
	require.NotZero(t, stop())
}

func TestFailover_FO01_FO02_sentinelTokensNeverFall(t *testing.T) {
	s := redistest.RunSentinel(t)
	client := s.Client(t, func(o *rueidis.ClientOption) { o.Sentinel.TopologyRefreshInterval = 500 * time.Millisecond })
	hf := sessionOn(t, client)
	l := newLock(t, hf, key(t), holdfast.Options{Lease: 2 * time.Second, Fencing: true})
	held := newLock(t, hf, key(t)+"-held", holdfast.Options{Lease: 30 * time.Second})
	ctx, lease := lock(t, held)
	var last uint64
	turn := func() {
		patient := within(t, 40*time.Second)
		_, lease, err := l.Lock(patient)
		require.NoError(t, err)
		require.Greater(t, lease.Token(), last)
		last = lease.Token()
		_ = lease.Unlock(patient)
	}
	for range 5 {
		turn()
	}
	s.Failover(t)
	for range 20 {
		turn()
	}
	s.WaitOK(t)
	s.KillPrimary(t)
	for range 20 {
		turn()
	}
	require.NoError(t, ctx.Err(), "a lock that the replica had is kept")
	require.NoError(t, lease.Unlock(ctx))
}

func TestFailover_aFreshLockThatNoReplicaHadIsTold(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t)
	replica := srv.Replica(t)
	replica.Promote(t) // from here on it hears of nothing
	proxy := redistest.NewProxy(t, srv.Addr())
	l := newLock(t, session(t, proxy.Addr()), key(t), holdfast.Options{Lease: 3 * time.Second}) // renewals are 1 s apart
	ctx, lease := lock(t, l)
	other := newLock(t, session(t, replica.Addr()), key(t))
	octx, theirs := lock(t, other) // the failover: two believe, until the next renewal
	srv.Do(t, "DEL", key(t))       // what the old holder's renewal finds on the new primary
	select {
	case <-ctx.Done():
	case <-time.After(2500 * time.Millisecond):
		t.Fatal("not told within a renewal")
	}
	require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)
	require.NoError(t, theirs.Unlock(octx))
}

func TestFailover_aDemotedPrimaryIsAnOutage(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t)
	l := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Lease: 2500 * time.Millisecond})
	ctx, lease := lock(t, l)
	srv.Do(t, "REPLICAOF", "127.0.0.1", "1")
	_, _, err := l.For("other").TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	require.NotErrorIs(t, err, holdfast.ErrNotAcquired)
	require.ErrorContains(t, err, "READONLY")
	time.Sleep(900 * time.Millisecond) // more than a period
	srv.Do(t, "REPLICAOF", "NO", "ONE")
	time.Sleep(1700 * time.Millisecond) // and with that, more than a lease
	require.NoError(t, ctx.Err(), "a short demotion costs nothing")
	srv.Do(t, "REPLICAOF", "127.0.0.1", "1")
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), holdfast.ErrLost, "a long one is told at the end of the lease")
	require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)
	srv.Do(t, "REPLICAOF", "NO", "ONE")
}

func TestFailover_fullMemoryRefusesOnlyNewLocks(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t)
	l := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Lease: 1500 * time.Millisecond})
	ctx, lease := lock(t, l)
	_, nested, err := l.Lock(ctx)
	require.NoError(t, err)
	free := srv.FillMemory(t)
	_, _, err = l.For("new").TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	require.ErrorContains(t, err, "OOM")
	require.ErrorContains(t, err, key(t)+":new")
	_, again, err := l.Lock(ctx)
	require.NoError(t, err, "nested holds work")
	require.NoError(t, again.Unlock(ctx))
	time.Sleep(1800 * time.Millisecond) // so do renewals
	require.NoError(t, ctx.Err())
	require.NoError(t, nested.Unlock(ctx))
	require.NoError(t, lease.Unlock(ctx))
	time.AfterFunc(200*time.Millisecond, free)
	require.NoError(t, l.For("new").Do(within(t, 10*time.Second), func(context.Context) error { return nil }))
}

func TestFailover_aBusyServerIsRiddenOut(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t)
	srv.Do(t, "CONFIG", "SET", "busy-reply-threshold", "100")
	l := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Lease: 3 * time.Second})
	ctx, lease := lock(t, l)
	done := make(chan struct{})
	client := connect(t, srv.Addr())
	go func() {
		defer close(done)
		spin := `local t = redis.call('TIME') local e = t[1]*1000000+t[2]+700000 repeat t = redis.call('TIME') until t[1]*1000000+t[2] > e`
		_ = client.Do(context.Background(), client.B().Eval().Script(spin).Numkeys(0).Build()).Error()
	}()
	time.Sleep(200 * time.Millisecond)
	_, _, err := l.For("x").TryLock(within(t, 300*time.Millisecond))
	if err != nil { // it may have come before the threshold
		require.ErrorIs(t, err, holdfast.ErrUnavailable)
		require.NotErrorIs(t, err, holdfast.ErrNotAcquired)
	}
	<-done
	time.Sleep(2500 * time.Millisecond)
	require.NoError(t, ctx.Err())
	require.NoError(t, lease.Unlock(ctx))
}

func TestFailover_jumpsOfTheServersClock(t *testing.T) {
	t.Parallel()
	clock, err := redistest.NewClock(t)
	if err != nil {
		t.Log("no C compiler, so no clock to turn: ", err)
		return
	}
	srv := redistest.Run(t, redistest.Options{Clock: clock})
	l := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Lease: 3 * time.Second, Fencing: true})
	ctx, lease := lock(t, l)
	first := lease.Token()
	clock.Jump(10 * time.Minute)
	select {
	case <-ctx.Done():
	case <-time.After(2500 * time.Millisecond):
		t.Fatal("a forward jump is told at the next renewal")
	}
	ctx, lease = lock(t, l)
	require.Greater(t, lease.Token(), first)
	second := lease.Token()
	clock.Jump(-10 * time.Minute)
	time.Sleep(1500 * time.Millisecond) // a renewal
	require.NoError(t, ctx.Err(), "a backward jump keeps the lock")
	require.NoError(t, lease.Unlock(ctx))
	ctx, lease = lock(t, l)
	require.Greater(t, lease.Token(), second, "and tokens do not fall with the clock")
	require.NoError(t, lease.Unlock(ctx))
}
