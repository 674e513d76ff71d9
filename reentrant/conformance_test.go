package reentrant_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

// What Redisson's own tests check of its plain and fenced locks, beside those of the
// list in docs/redisson.md that stand elsewhere. The number is that of the list.

func TestScenario_L01_manyTasksOnFewNamesGetThrough(t *testing.T) {
	srv := redistest.Run(t)
	hf := session(t, srv.Addr())
	l := newLock(t, hf, key(t))
	var tasks sync.WaitGroup
	for range 32 {
		tasks.Go(func() {
			for range 30 {
				err := l.For(strconv.Itoa(rand.IntN(5))).Do(within(t, 60*time.Second), func(context.Context) error {
					time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	tasks.Wait()
	subscribed(t, srv, 0)
	require.Empty(t, srv.Keys(t, "*"))
}

func TestScenario_L03_aTryThatIsCancelledLeavesNoLockThatIsRenewed(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 200 * time.Millisecond})
	for range 20 {
		ctx, cancel := context.WithCancel(context.Background())
		go cancel()
		_, _, _ = l.TryLock(ctx)
	}
	redistest.Eventually(t, 10*time.Second, "it is free", func() bool { return server.Do(t, "EXISTS", key(t)) == "0" })
	time.Sleep(400 * time.Millisecond) // two leases
	require.Equal(t, "0", server.Do(t, "EXISTS", key(t)))
}

func TestScenario_L04_aTryWithoutAServerIsAnError(t *testing.T) {
	srv := redistest.Run(t)
	l := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Wait: 300 * time.Millisecond})
	srv.Kill()
	_, _, err := l.Lock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	require.NotErrorIs(t, err, holdfast.ErrNotAcquired)
}

func TestScenario_L06_aTimedWaitForADeadHolderEndsOnTime(t *testing.T) {
	t.Parallel()
	server.Do(t, "HSET", key(t), "6f1c2a40-0000-4000-8000-000000000000:1", "1")
	server.Do(t, "PEXPIRE", key(t), "30000")
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Wait: time.Second})
	began := time.Now()
	_, _, err := l.Lock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.GreaterOrEqual(t, time.Since(began), time.Second)
	require.Less(t, time.Since(began), 10*time.Second) // the holder has 30
}

// Redisson's waiter goes on waiting when its thread is interrupted; ours leaves.
func TestScenario_L07_aWaiterThatIsCancelledLeavesAndTheHolderStays(t *testing.T) {
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t))
	ctx, lease := lock(t, l)
	patience, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { _, _, err := l.Lock(patience); done <- err }()
	waiting(t, hf, 1)
	cancel()
	err := <-done
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, ctx.Err())
	require.NoError(t, lease.Unlock(ctx))
}

func TestScenario_L08_forceUnlockFreesItForOldAndNewHandles(t *testing.T) {
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t))
	ctx, lease := lock(t, l)
	was, err := l.ForceUnlock(context.Background())
	require.NoError(t, err)
	require.True(t, was)
	for _, handle := range []interface {
		Info(ctx context.Context) (holdfast.Info, error)
	}{l, newLock(t, hf, key(t)), newLock(t, session(t, redisAddr), key(t))} {
		info, err := handle.Info(context.Background())
		require.NoError(t, err)
		require.Equal(t, "free", info.Mode)
	}
	require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)
}

func TestScenario_L09_aLeaseRunsOutOnTimeAndTheLateUnlockFails(t *testing.T) {
	const lease = 400 * time.Millisecond
	began := time.Now()
	ctx, old := lock(t, newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: lease, Fixed: true}))
	next, held := lock(t, newLock(t, session(t, redisAddr), key(t)))
	require.GreaterOrEqual(t, time.Since(began), lease)
	require.Less(t, time.Since(began), lease+3*time.Second)
	require.ErrorIs(t, old.Unlock(ctx), holdfast.ErrLost)
	require.NoError(t, next.Err())
	require.NoError(t, held.Unlock(next))
}

func TestScenario_L11_L17_inACluster(t *testing.T) {
	cluster := redistest.RunCluster(t, redistest.ClusterOptions{Primaries: 3})
	hf := sessionOn(t, cluster.Client(t))
	mode := func(name string) string {
		info, err := newLock(t, hf, name).Info(context.Background())
		require.NoError(t, err)
		return info.Mode
	}
	for i := range 30 {
		name := key(t) + strconv.Itoa(i)
		ctx, lease, err := newLock(t, hf, name).TryLock(context.Background())
		require.NoError(t, err)
		require.Equal(t, "exclusive", mode(name))
		require.NoError(t, lease.Unlock(ctx))
		require.Equal(t, "free", mode(name))
	}
}

func TestScenario_L13_holdCounts(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	count := func() string { return server.Do(t, "HVALS", key(t)) }
	require.Empty(t, count())
	ctx, lease := lock(t, l)
	require.Equal(t, "1", count())
	require.NoError(t, lease.Unlock(ctx))
	require.Empty(t, count())
	ctx, lease = lock(t, l)
	_, nested, err := l.Lock(ctx)
	require.NoError(t, err)
	require.Equal(t, "2", count())
	require.Equal(t, 2, lease.Holds())
	require.NoError(t, nested.Unlock(ctx))
	require.Equal(t, "1", count())
	require.NoError(t, lease.Unlock(ctx))
	require.Empty(t, count())
	require.Zero(t, lease.Holds())
}

func TestScenario_L19_whoDoesNotHoldItCannotUnlockIt(t *testing.T) {
	ctx, lease := lock(t, newLock(t, session(t, redisAddr), key(t)))
	_, theirs, err := newLock(t, session(t, redisAddr), key(t)).TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.ErrorIs(t, theirs.Unlock(context.Background()), holdfast.ErrNotHeld)
	require.NoError(t, ctx.Err())
	require.NoError(t, lease.Unlock(ctx))
	require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrNotHeld)
}

func TestScenario_L20_againAndAgain(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	for range 2 {
		ctx, lease := lock(t, l)
		require.NoError(t, lease.Unlock(ctx))
	}
	require.Equal(t, "0", server.Do(t, "EXISTS", key(t)))
}

// No lock that is held ever misses its renewals, however many are taken and given
// back beside it.
func TestScenario_L22_triesInParallelNeverLoseARenewal(t *testing.T) {
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t), holdfast.Options{Lease: 3 * time.Second}) // which a starved machine can still renew
	steady, kept := lock(t, l.For("steady"))
	var workers sync.WaitGroup
	var taken atomic.Int64
	stop := time.Now().Add(3500 * time.Millisecond) // more than a lease
	for range 16 {
		workers.Go(func() {
			for time.Now().Before(stop) {
				ctx, lease, err := l.For("busy").TryLock(context.Background())
				if err != nil {
					time.Sleep(50 * time.Microsecond) // it was refused without a command
					continue
				}
				taken.Add(1)
				if err := lease.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	require.Positive(t, taken.Load())
	require.NoError(t, steady.Err())
	require.NoError(t, kept.Unlock(steady))
}

func TestScenario_L23_L24_countsUnderTheLock(t *testing.T) {
	count := func(sessions, tasks, rounds int) (n int) {
		var all sync.WaitGroup
		for range sessions {
			hf := session(t, redisAddr)
			for range tasks {
				all.Go(func() {
					for range rounds {
						l := newLock(t, hf, key(t)) // a fresh handle
						if err := l.Do(context.Background(), func(context.Context) error { n++; return nil }); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		return n
	}
	require.Equal(t, 15, count(1, 15, 1))
	require.Equal(t, 1600, count(16, 1, 100))
}

// Redisson's owners can be given by number. Ours are holds, which WithLease carries
// to any code.
func TestScenario_L27_aHoldIsCarriedToOtherCode(t *testing.T) {
	hf := session(t, redisAddr)
	l, handle := newLock(t, hf, key(t)), newLock(t, hf, key(t))
	ctx, lease, err := l.TryLock(context.Background())
	require.NoError(t, err)
	carried := holdfast.WithLease(context.Background(), lease)
	require.NotNil(t, handle.Held(carried), "through another handle too")
	_, _, err = handle.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired, "another owner")
	require.NoError(t, lease.Unlock(ctx))
	require.Nil(t, handle.Held(carried))
	ctx, lease, err = handle.TryLock(context.Background())
	require.NoError(t, err)
	require.NotNil(t, l.Held(ctx))
	require.NoError(t, lease.Unlock(ctx))
	require.Nil(t, l.Held(ctx))
}

func TestScenario_WD05_nothingIsRenewedAfterAsManyUnlocks(t *testing.T) {
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t))
	for _, nested := range []bool{false, true} {
		ctx, lease := lock(t, l)
		if nested {
			_, inner, err := l.Lock(ctx)
			require.NoError(t, err)
			require.NoError(t, inner.Unlock(ctx))
		}
		require.Equal(t, 1, hf.Stats().Held)
		require.NoError(t, lease.Unlock(ctx))
		require.Zero(t, hf.Stats().Held)
	}
}

// Without the semaphore of the original, which is not there yet.
func TestScenario_HV01_HV02_workersWalkTheSameNames(t *testing.T) {
	hf := session(t, redisAddr)
	for _, wait := range []time.Duration{0, 9 * time.Millisecond} {
		l := newLock(t, hf, key(t), holdfast.Options{Wait: wait})
		var workers sync.WaitGroup
		for range 5 {
			workers.Go(func() {
				for i := range 100 {
					ctx, lease, err := l.For(strconv.Itoa(i)).Lock(within(t, 60*time.Second))
					if wait != 0 && err != nil {
						continue
					}
					if err == nil {
						err = lease.Unlock(ctx)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		workers.Wait()
	}
	require.Empty(t, server.Keys(t, key(t)+"*"))
}

// Redisson's tokens are 1, 2, 3, 4, 5. Ours rise from the server's clock.
func TestScenario_FE01_everyWayToTakeItMovesTheToken(t *testing.T) {
	hf := session(t, redisAddr)
	fenced := func(o holdfast.Options) holdfast.Locker {
		o.Fencing, o.TokenRetention = true, -1
		return newLock(t, hf, key(t), o)
	}
	last := uint64(0)
	for _, l := range []holdfast.Locker{
		fenced(holdfast.Options{}), fenced(holdfast.Options{}), fenced(holdfast.Options{Lease: 10 * time.Second, Fixed: true}),
		fenced(holdfast.Options{Wait: -1}), fenced(holdfast.Options{Handoff: -1}),
	} {
		ctx, lease := lock(t, l)
		require.Greater(t, lease.Token(), last)
		last = lease.Token()
		require.Equal(t, strconv.FormatUint(last, 10), server.Do(t, "GET", "redisson_lock_token:{"+key(t)+"}"))
		require.NoError(t, lease.Unlock(ctx))
	}
}

func TestScenario_X01_keysFieldsChannelsAndPayloadsByteForByte(t *testing.T) {
	srv := redistest.Run(t)
	for _, c := range []struct{ prefix, name, key, channel, token string }{
		{"", "orders", "orders", "redisson_lock__channel:{orders}", "redisson_lock_token:{orders}"},
		{"", "{a}:orders", "{a}:orders", "redisson_lock__channel:{a}:orders", "redisson_lock_token:{a}:orders"},
		{"app:", "orders", "app:orders", "redisson_lock__channel:{app:orders}", "redisson_lock_token:{app:orders}"},
		{"", "käse-🔒", "käse-🔒", "redisson_lock__channel:{käse-🔒}", "redisson_lock_token:{käse-🔒}"},
	} {
		heard := messages(t, srv.Addr(), c.channel)
		hf := session(t, srv.Addr(), holdfast.SessionOptions{Prefix: c.prefix})
		ctx, lease := lock(t, newLock(t, hf, c.name, holdfast.Options{Fencing: true, TokenRetention: -1}))
		require.Equal(t, lease.Owner()+" 1", srv.Do(t, "HGETALL", c.key))
		require.ElementsMatch(t, []string{c.key, c.token}, srv.Keys(t, "*"))
		require.NoError(t, lease.Unlock(ctx))
		require.Equal(t, c.channel+" 0", next(t, heard))
		require.ElementsMatch(t, []string{c.token}, srv.Keys(t, "*"))
		srv.Do(t, "DEL", c.token)
	}
}

func TestScenario_X05_aRefusalWithoutATTLIsNoGrant(t *testing.T) {
	server.Do(t, "HSET", key(t), "6f1c2a40-0000-4000-8000-000000000000:1", "1")
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Fencing: true, TokenRetention: -1})
	_, lease, err := l.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.Zero(t, lease.Token())
	server.Do(t, "DEL", key(t))
}
