package reentrant_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

func TestLock_excludesGoroutinesOfOneProcess(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	counter := 0
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 50 {
				if err := l.Do(context.Background(), func(context.Context) error { counter++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1000, counter)
}

func TestLock_excludesProcesses(t *testing.T) {
	counter := 0
	var wg sync.WaitGroup
	for range 4 {
		l := newLock(t, session(t, redisAddr), key(t))
		for range 5 {
			wg.Go(func() {
				for range 25 {
					if err := l.Do(context.Background(), func(context.Context) error { counter++; return nil }); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	require.Equal(t, 500, counter)
}

func TestLock_isARedissonHash(t *testing.T) {
	hf := session(t, redisAddr, holdfast.SessionOptions{Label: "job 7"})
	l := newLock(t, hf, key(t))
	ctx, lease := lock(t, l)
	require.Equal(t, lease.Owner()+" 1", server.Do(t, "HGETALL", key(t)))
	require.Contains(t, lease.Owner(), "job 7/")
	_, nested, err := l.Lock(ctx)
	require.NoError(t, err)
	require.Equal(t, lease.Owner()+" 2", server.Do(t, "HGETALL", key(t)))
	require.NoError(t, nested.Unlock(ctx))
	require.Equal(t, lease.Owner()+" 1", server.Do(t, "HGETALL", key(t)))
	require.NoError(t, lease.Unlock(ctx))
	require.Equal(t, "0", server.Do(t, "EXISTS", key(t)))
}

func TestLock_waitsForAJavaOwnerAndHearsItsRelease(t *testing.T) {
	name := key(t)
	const java = "6f1c2a40-0000-4000-8000-000000000000:42"
	server.Do(t, "HSET", name, java, "1")
	server.Do(t, "PEXPIRE", name, "30000")
	hf := session(t, redisAddr)
	l := newLock(t, hf, name)
	got := make(chan error, 1)
	go func() {
		_, lease, err := l.Lock(within(t, 10*time.Second))
		if err == nil {
			err = lease.Unlock(context.Background())
		}
		got <- err
	}()
	channel := "redisson_lock__channel:{" + name + "}"
	redistest.Eventually(t, 20*time.Second, "it listens", func() bool { return contains(server.Channels(t), channel) })
	server.Do(t, "DEL", name)
	server.Do(t, "PUBLISH", channel, "0")
	require.NoError(t, <-got)
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

func TestReentrance_followsTheContextAndNothingElse(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	ctx, lease := lock(t, l)
	require.Same(t, lease, l.Held(ctx))

	inner, nested, err := l.TryLock(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, lease.Holds())
	require.Same(t, nested, l.Held(inner))
	_, third, err := l.TryLock(holdfast.WithLease(context.Background(), nested))
	require.NoError(t, err)
	require.Equal(t, 3, lease.Holds())

	_, _, err = l.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired, "a stranger in the same goroutine")
	_, _, err = l.TryLock(holdfast.WithoutLeases(ctx))
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)

	require.NoError(t, third.Unlock(ctx))
	require.NoError(t, nested.Unlock(ctx))
	require.ErrorIs(t, nested.Unlock(ctx), holdfast.ErrNotHeld)
	require.ErrorIs(t, context.Cause(inner), holdfast.ErrNotHeld)
	require.Equal(t, holdfast.StateReleased, nested.State())
	require.True(t, lease.Valid())
	require.NoError(t, lease.Unlock(ctx))
	require.Nil(t, l.Held(ctx))
}

func TestReentrance_differentLocksKeepEachOther(t *testing.T) {
	hf := session(t, redisAddr)
	a, b := newLock(t, hf, key(t)+"-a"), newLock(t, hf, key(t)+"-b")
	ctx, la := lock(t, a)
	ctx, lb, err := b.Lock(ctx)
	require.NoError(t, err)
	require.Same(t, la, a.Held(ctx))
	require.Same(t, lb, b.Held(ctx))
	ctx2, again, err := a.TryLock(ctx)
	require.NoError(t, err)
	require.Same(t, lb, b.Held(ctx2))
	require.NoError(t, again.Unlock(ctx2))
	require.NoError(t, lb.Unlock(ctx))
	require.NoError(t, la.Unlock(ctx))
}

func TestReentrance_aContextThatOutlivesItsHoldIsHarmless(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	ctx, lease := lock(t, l)
	stale := context.WithoutCancel(ctx)
	require.NoError(t, lease.Unlock(ctx))
	_, second, err := l.TryLock(stale)
	require.NoError(t, err, "a stranger takes a free lock")
	require.NotEqual(t, lease.Owner(), second.Owner())
	require.Equal(t, 1, second.Holds())
	_, _, err = l.TryLock(stale)
	require.ErrorIs(t, err, holdfast.ErrNotAcquired, "and does not re-enter by it")
	require.NoError(t, second.Unlock(ctx))
}

func TestReentrance_anotherSessionIsAStranger(t *testing.T) {
	ctx, lease := lock(t, newLock(t, session(t, redisAddr), key(t)))
	defer lease.Unlock(ctx)
	_, _, err := newLock(t, session(t, redisAddr), key(t)).TryLock(ctx)
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
}

func TestReentrance_theLockIsFreeWhenTheLastHoldIsUnlocked(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	ctx, root := lock(t, l)
	inner, nested, err := l.Lock(ctx)
	require.NoError(t, err)
	require.NoError(t, root.Unlock(ctx))
	require.Error(t, inner.Err(), "the nested context ends with the root's")
	require.True(t, nested.Valid(), "but its work keeps the lock until it unlocks")
	require.Equal(t, "1", server.Do(t, "EXISTS", key(t)))
	require.NoError(t, nested.Unlock(ctx))
	require.Equal(t, "0", server.Do(t, "EXISTS", key(t)))
}

func TestReentrance_countsAreExactUnderConcurrency(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	ctx, root := lock(t, l)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 10 {
				_, nested, err := l.Lock(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				if err := nested.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, root.Owner()+" 1", server.Do(t, "HGETALL", key(t)))
	require.NoError(t, root.Unlock(ctx))
}

func TestReentrance_aNestedHoldThatAsksForMoreIsRefused(t *testing.T) {
	hf := session(t, redisAddr)
	fixed := newLock(t, hf, key(t), holdfast.Options{Fixed: true, Lease: 10 * time.Second})
	ctx, lease := lock(t, fixed)
	for _, more := range []holdfast.Options{
		{},
		{Fixed: true, Lease: time.Minute},
		{Fixed: true, Lease: time.Second, Fencing: true},
		{Fixed: true, Lease: time.Second, MinHold: time.Second},
	} {
		_, _, err := newLock(t, hf, key(t), more).Lock(ctx)
		require.ErrorIs(t, err, holdfast.ErrOption, "%+v", more)
	}
	require.Equal(t, lease.Owner()+" 1", server.Do(t, "HGETALL", key(t)))
	_, less, err := newLock(t, hf, key(t), holdfast.Options{Fixed: true, Lease: time.Second}).Lock(ctx)
	require.NoError(t, err)
	require.NoError(t, less.Unlock(ctx))
	require.NoError(t, lease.Unlock(ctx))
}

func TestUnlock_fromAnotherGoroutineWorks(t *testing.T) {
	_, lease := lock(t, newLock(t, session(t, redisAddr), key(t)))
	done := make(chan error)
	go func() { done <- lease.Unlock(context.Background()) }()
	require.NoError(t, <-done)
	require.ErrorIs(t, lease.Unlock(context.Background()), holdfast.ErrNotHeld)
}

func TestUnlock_worksAfterItsContextHasEnded(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	ctx, cancel := context.WithCancel(context.Background())
	ctx, lease, err := l.Lock(ctx)
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	require.True(t, lease.Valid())
	require.NoError(t, lease.Unlock(ctx))
	require.Equal(t, "0", server.Do(t, "EXISTS", key(t)))
}

func TestUnlock_onNilSaysNotHeld(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	_, held := lock(t, l)
	ctx := context.WithValue(context.Background(), testKey{}, "mine")
	back, lease, err := l.TryLock(ctx)
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.Equal(t, ctx, back, "the caller's context comes back")
	require.Nil(t, lease)
	require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrNotHeld)
	require.ErrorIs(t, lease.Extend(ctx, time.Second), holdfast.ErrNotHeld)
	require.False(t, lease.Valid())
	require.Zero(t, lease.Token())
	require.Zero(t, lease.Holds())
	require.Zero(t, lease.Remaining())
	require.Empty(t, lease.Name()+lease.Owner())
	require.Equal(t, holdfast.StateReleased, lease.State())
	require.ErrorIs(t, context.Cause(lease.Context()), holdfast.ErrNotHeld)
	require.True(t, held.Valid(), "the holder is untouched")
	require.NoError(t, held.Unlock(ctx))
}

type testKey struct{}

func TestUnlock_byAnOldHolderChangesNothingOfTheNew(t *testing.T) {
	old := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 200 * time.Millisecond, Fixed: true})
	ctx, lease := lock(t, old)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), holdfast.ErrLost)
	_, next := lock(t, newLock(t, session(t, redisAddr), key(t)))
	before := server.Do(t, "HGETALL", key(t))
	err := lease.Unlock(ctx)
	var lost *holdfast.LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, holdfast.ReasonExpired, lost.Reason)
	require.Equal(t, before, server.Do(t, "HGETALL", key(t)))
	require.NoError(t, next.Unlock(ctx))
}

func TestLease_keepsItsLengthWhateverTheCallersDeadline(t *testing.T) {
	t.Parallel()
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 20 * time.Second})
	ctx, lease, err := l.Lock(within(t, time.Second))
	require.NoError(t, err)
	require.Greater(t, lease.Remaining(), 10*time.Second)
	<-ctx.Done()
	require.True(t, lease.Valid(), "the wait is over, the hold is not")
	require.NoError(t, lease.Unlock(ctx))
}

func TestLease_waitAndLeaseAreTwoThings(t *testing.T) {
	t.Parallel()
	_, holder := lock(t, newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: time.Second, Fixed: true}))
	defer holder.Unlock(context.Background())
	ctx, lease, err := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 900 * time.Millisecond}).Lock(within(t, 20*time.Second))
	require.NoError(t, err, "it waits longer than its own lease")
	require.Greater(t, lease.Remaining(), 200*time.Millisecond)
	require.NoError(t, lease.Unlock(ctx))
}

func TestLease_isRenewedByTheWatchdog(t *testing.T) {
	t.Parallel()
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 1500 * time.Millisecond})
	ctx, lease := lock(t, l)
	select {
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
	case <-time.After(3200 * time.Millisecond): // more than two leases
	}
	require.Equal(t, holdfast.StateHeld, lease.State())
	require.NoError(t, lease.Unlock(ctx))
}

func TestExtend_givesAFixedLeaseMoreTime(t *testing.T) {
	t.Parallel()
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 5 * time.Second, Fixed: true})
	ctx, lease := lock(t, l)
	require.NoError(t, lease.Extend(ctx, time.Minute))
	require.Greater(t, lease.Remaining(), 40*time.Second)
	require.NoError(t, lease.Extend(ctx, 700*time.Millisecond))
	require.Less(t, lease.Remaining(), 701*time.Millisecond, "shorter here")
	left, err := strconv.Atoi(server.Do(t, "PTTL", key(t)))
	require.NoError(t, err)
	require.Greater(t, left, 40_000, "and not shortened in Redis")
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), holdfast.ErrLost)
	require.ErrorIs(t, lease.Extend(ctx, time.Second), holdfast.ErrLost)
	server.Do(t, "DEL", key(t))

	for _, d := range []time.Duration{0, -1, -time.Second, time.Millisecond, 1 << 62} {
		_, lease := lock(t, l)
		require.ErrorIs(t, lease.Extend(ctx, d), holdfast.ErrOption, "%v", d)
		require.True(t, lease.Valid())
		require.NoError(t, lease.Unlock(ctx))
	}
	_, watched := lock(t, newLock(t, session(t, redisAddr), key(t)))
	require.ErrorIs(t, watched.Extend(ctx, time.Minute), holdfast.ErrOption)
	require.NoError(t, watched.Unlock(ctx))
}

func TestLost_X04_isToldWithinOneRenewal(t *testing.T) {
	for name, spoil := range map[string]func(t testing.TB, k string){
		"deleted":     func(t testing.TB, k string) { server.Do(t, "DEL", k) },
		"taken":       func(t testing.TB, k string) { server.Do(t, "DEL", k); server.Do(t, "HSET", k, "other", "1") },
		"overwritten": func(t testing.TB, k string) { server.Do(t, "SET", k, "data") },
		"clock":       func(t testing.TB, k string) { server.Do(t, "PEXPIRE", k, "1") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hf := session(t, redisAddr)
			ctx, lease := lock(t, newLock(t, hf, key(t), holdfast.Options{Lease: 3 * time.Second})) // renewals are 1 s apart
			spoil(t, key(t))
			select {
			case <-ctx.Done():
			case <-time.After(2500 * time.Millisecond):
				t.Fatal("not told")
			}
			var lost *holdfast.LostError
			require.ErrorAs(t, context.Cause(ctx), &lost)
			require.Equal(t, key(t), lost.Name)
			require.Equal(t, holdfast.StateLost, lease.State())
			require.Zero(t, lease.Holds())
			state := server.Do(t, "TYPE", key(t))
			before := server.Calls(t)
			require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)
			require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrNotHeld)
			require.Zero(t, server.Calls(t).Since(before).Of("hdel"), "without asking Redis")
			require.Equal(t, state, server.Do(t, "TYPE", key(t)), "nothing of the others is touched")
			require.Zero(t, hf.Stats().Held)
			server.Do(t, "DEL", key(t))
		})
	}
}

func TestLost_endsNestedLeasesToo(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: time.Second})
	ctx, root := lock(t, l)
	other := holdfast.WithLease(context.Background(), root)
	inner, nested, err := l.Lock(other)
	require.NoError(t, err)
	server.Do(t, "DEL", key(t))
	<-ctx.Done()
	<-inner.Done()
	require.ErrorIs(t, context.Cause(inner), holdfast.ErrLost)
	require.ErrorIs(t, nested.Unlock(ctx), holdfast.ErrLost)
	require.ErrorIs(t, root.Unlock(ctx), holdfast.ErrLost)
}

func TestLost_isFoundByANestedLock(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	ctx, root := lock(t, l)
	server.Do(t, "DEL", key(t))
	_, _, err := l.Lock(ctx)
	require.ErrorIs(t, err, holdfast.ErrLost)
	require.ErrorIs(t, context.Cause(ctx), holdfast.ErrLost)
	require.Equal(t, "0", server.Do(t, "EXISTS", key(t)), "only a root acquire creates")
	require.ErrorIs(t, root.Unlock(ctx), holdfast.ErrLost)
}

func TestMaxHold_endsAForgottenHold(t *testing.T) {
	t.Parallel()
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 1500 * time.Millisecond, MaxHold: 2 * time.Second})
	began := time.Now()
	ctx, _ := lock(t, l)
	<-ctx.Done()
	require.GreaterOrEqual(t, time.Since(began), 2*time.Second)
	var lost *holdfast.LostError
	require.ErrorAs(t, context.Cause(ctx), &lost)
	require.Equal(t, holdfast.ReasonMaxHold, lost.Reason)
	redistest.Eventually(t, 10*time.Second, "the key is gone", func() bool { return server.Do(t, "EXISTS", key(t)) == "0" })
}

func TestGrace_keepsALockForCodeThatHasNotSeenTheEnd(t *testing.T) {
	t.Parallel()
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 1500 * time.Millisecond, Grace: 3 * time.Second})
	ctx, cancel := context.WithCancel(context.Background())
	_, lease, err := l.Lock(ctx)
	require.NoError(t, err)
	cancel()
	time.Sleep(1700 * time.Millisecond) // longer than a lease
	require.True(t, lease.Valid())
	redistest.Eventually(t, 10*time.Second, "it is abandoned", func() bool { return lease.State() == holdfast.StateLost })
	var lost *holdfast.LostError
	require.ErrorAs(t, lease.Unlock(ctx), &lost)
	require.Equal(t, holdfast.ReasonAbandoned, lost.Reason)
}

func TestMinHold_keepsTheLockAfterUnlock(t *testing.T) {
	t.Parallel()
	options := holdfast.Options{MinHold: 1500 * time.Millisecond, Wait: -1, Lease: 800 * time.Millisecond}
	began := time.Now()
	l := newLock(t, session(t, redisAddr), key(t), options)
	require.NoError(t, l.Do(context.Background(), func(context.Context) error { return nil }))
	for _, again := range []holdfast.Locker{l, newLock(t, session(t, redisAddr), key(t), options)} {
		require.ErrorIs(t, again.Do(context.Background(), func(context.Context) error { return nil }), holdfast.ErrNotAcquired)
	}
	_, lease := lock(t, newLock(t, session(t, redisAddr), key(t)))
	require.GreaterOrEqual(t, time.Since(began), 1500*time.Millisecond)
	require.Less(t, time.Since(began), 10*time.Second)
	require.NoError(t, lease.Unlock(context.Background()))
}

func TestTryLock_doesNotAskWhenThisProcessHoldsOrQueues(t *testing.T) {
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t))
	_, lease := lock(t, l)
	before := server.Calls(t)
	for range 100 {
		_, _, err := l.TryLock(context.Background())
		require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	}
	require.Zero(t, server.Calls(t).Since(before).Scripts())
	require.NoError(t, lease.Unlock(context.Background()))

	_, theirs := lock(t, newLock(t, session(t, redisAddr), key(t)))
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		_, _, _ = l.Lock(ctx)
	}()
	waiting(t, hf, 1)
	subscribed(t, server, 1)
	redistest.Eventually(t, 10*time.Second, "the waiter has asked", func() bool {
		before := server.Calls(t)
		_, _, err := l.TryLock(context.Background())
		return errors.Is(err, holdfast.ErrNotAcquired) && server.Calls(t).Since(before).Scripts() == 0
	})
	cancel()
	<-done
	require.NoError(t, theirs.Unlock(context.Background()))
}

func TestWait_boundsTheWaitAlone(t *testing.T) {
	t.Parallel()
	_, theirs := lock(t, newLock(t, session(t, redisAddr), key(t)))
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Wait: time.Second})
	began := time.Now()
	_, _, err := l.Lock(context.Background())
	require.GreaterOrEqual(t, time.Since(began), time.Second)
	require.Less(t, time.Since(began), 10*time.Second) // theirs has 30
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, theirs.Unlock(context.Background()))
	ctx, lease, err := l.Lock(context.Background())
	require.NoError(t, err)
	time.Sleep(1200 * time.Millisecond)
	require.NoError(t, ctx.Err())
	require.NoError(t, lease.Unlock(ctx))
}

func TestErrors_sayWhoseDeadlineItWas(t *testing.T) {
	_, theirs := lock(t, newLock(t, session(t, redisAddr), key(t)))
	defer theirs.Unlock(context.Background())
	l := newLock(t, session(t, redisAddr), key(t))

	_, _, err := l.Lock(within(t, time.Second))
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	subscribed(t, server, 0)

	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("the user went home")
	done := make(chan error, 1)
	go func() { _, _, err := l.Lock(ctx); done <- err }()
	subscribed(t, server, 1) // so it has been told that the lock is taken
	cancel(why)
	err = <-done
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, why)
	require.NotErrorIs(t, err, context.DeadlineExceeded)

	_, _, err = l.Lock(ctx) // it has ended before
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, holdfast.ErrNotAcquired, "nobody was asked")
}

func TestDo_doesNotCallWorkWithoutTheLock(t *testing.T) {
	_, theirs := lock(t, newLock(t, session(t, redisAddr), key(t)))
	defer theirs.Unlock(context.Background())
	l := newLock(t, session(t, redisAddr), key(t))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Do(ctx, func(context.Context) error { panic("called") }) }()
	subscribed(t, server, 1) // so it has been told that the lock is taken
	cancel()
	require.ErrorIs(t, <-done, holdfast.ErrNotAcquired)
}

func TestDo_joinsTheWorksErrorAndTheLoss(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: time.Second})
	mine := errors.New("mine")
	err := l.Do(context.Background(), func(ctx context.Context) error {
		server.Do(t, "DEL", key(t))
		<-ctx.Done()
		return mine
	})
	require.ErrorIs(t, err, mine)
	require.ErrorIs(t, err, holdfast.ErrLost)

	err = l.Do(context.Background(), func(context.Context) error {
		server.Do(t, "DEL", key(t)) // and no renewal has noticed
		return nil
	})
	require.ErrorIs(t, err, holdfast.ErrLost, "the work was not protected to its end")
	require.NoError(t, l.Do(context.Background(), func(context.Context) error { return nil }))
	require.ErrorIs(t, l.Do(context.Background(), func(context.Context) error { return mine }), mine)
}

func TestDo_releasesOnPanicAndGoexit(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	require.PanicsWithValue(t, "boom", func() {
		_ = l.Do(context.Background(), func(context.Context) error { panic("boom") })
	})
	require.Equal(t, "0", server.Do(t, "EXISTS", key(t)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.Do(context.Background(), func(context.Context) error { runtime.Goexit(); return nil })
	}()
	<-done
	require.Equal(t, "0", server.Do(t, "EXISTS", key(t)))
}

func TestFencing_tokensRiseAndStayThroughAHold(t *testing.T) {
	t.Parallel()
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t), holdfast.Options{Fencing: true, Lease: 1500 * time.Millisecond})
	counter := "redisson_lock_token:{" + key(t) + "}"
	last := uint64(0)
	for turn := range 5 {
		ctx, lease := lock(t, l)
		token := lease.Token()
		require.Greater(t, token, last, "turn %d", turn)
		require.Less(t, token, uint64(1)<<53)
		_, nested, err := l.Lock(ctx)
		require.NoError(t, err)
		require.Equal(t, token, nested.Token())
		if turn%2 == 0 {
			time.Sleep(700 * time.Millisecond) // a renewal
		}
		require.Equal(t, token, lease.Token())
		require.NoError(t, nested.Unlock(ctx))
		require.NoError(t, lease.Unlock(ctx))
		last = token
		if turn == 2 {
			server.Do(t, "DEL", counter) // a failover, a flush
		}
	}
	require.NotEqual(t, "-1", server.Do(t, "PTTL", counter))
	_, plain := lock(t, newLock(t, hf, key(t)+"-plain"))
	require.Zero(t, plain.Token())
	require.NoError(t, plain.Unlock(context.Background()))
}

func TestFencing_tokensRiseThroughHandovers(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Fencing: true})
	var wg sync.WaitGroup
	last := uint64(0)
	for range 32 {
		wg.Go(func() {
			for range 50 {
				err := l.Do(context.Background(), func(ctx context.Context) error {
					token := l.Held(ctx).Token()
					if token <= last {
						t.Errorf("token %d after %d", token, last)
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
	wg.Wait()
}

func TestInfo_saysWhoHoldsIt(t *testing.T) {
	l := newLock(t, session(t, redisAddr, holdfast.SessionOptions{Label: "billing"}), key(t))
	info, err := l.Info(context.Background())
	require.NoError(t, err)
	require.Equal(t, holdfast.Info{Mode: "free"}, info)
	ctx, lease := lock(t, l)
	_, nested, err := l.Lock(ctx)
	require.NoError(t, err)
	before := server.Calls(t)
	info, err = newLock(t, session(t, redisAddr), key(t)).Info(context.Background())
	require.NoError(t, err)
	require.EqualValues(t, 1, server.Calls(t).Since(before).Scripts())
	require.Equal(t, "exclusive", info.Mode)
	require.Equal(t, []holdfast.Holder{{Owner: lease.Owner(), Holds: 2}}, info.Holders)
	require.InDelta(t, 30, info.TTL.Seconds(), 5)
	require.NoError(t, nested.Unlock(ctx))
	require.NoError(t, lease.Unlock(ctx))
}

func TestForceUnlock_wakesWaitersAndTellsTheHolder(t *testing.T) {
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t)) // lease 30s: renewals are 10s apart
	ctx, _ := lock(t, l)
	local := make(chan error, 1)
	go func() { // a waiter beside the holder, so that its process listens
		_, lease, err := l.Lock(within(t, 10*time.Second))
		if err == nil {
			err = lease.Unlock(context.Background())
		}
		local <- err
	}()
	waiting(t, hf, 1)
	other := newLock(t, session(t, redisAddr), key(t))
	remote := make(chan error, 1)
	go func() {
		_, lease, err := other.Lock(within(t, 10*time.Second))
		if err == nil {
			err = lease.Unlock(context.Background())
		}
		remote <- err
	}()
	admin := newLock(t, session(t, redisAddr), key(t))
	subscribed(t, server, 1)
	was, err := admin.ForceUnlock(context.Background())
	require.NoError(t, err)
	require.True(t, was)
	require.NoError(t, <-remote)
	// The waiter beside the holder gets in once the holder is known to have lost.
	was, err = l.ForceUnlock(context.Background())
	require.NoError(t, err)
	_ = was
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), holdfast.ErrLost)
	require.NoError(t, <-local)
	was, err = admin.ForceUnlock(context.Background())
	require.NoError(t, err)
	require.False(t, was)
}

func TestClose_letsHoldersGoOnAndWaitersGoHome(t *testing.T) {
	t.Parallel()
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t), holdfast.Options{Lease: 1500 * time.Millisecond})
	ctx, lease := lock(t, l)
	waiter := make(chan error, 1)
	go func() {
		_, _, err := l.Lock(context.Background())
		waiter <- err
	}()
	waiting(t, hf, 1)
	closed := make(chan error, 1)
	go func() { closed <- hf.Close(context.Background()) }()
	require.ErrorIs(t, <-waiter, holdfast.ErrClosed)
	_, _, err := l.For("new").Lock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrClosed)
	time.Sleep(1800 * time.Millisecond) // more than a lease
	require.NoError(t, ctx.Err(), "the holder goes on, renewed")
	_, nested, err := l.Lock(ctx)
	require.NoError(t, err, "and may re-enter")
	require.NoError(t, nested.Unlock(ctx))
	require.NoError(t, lease.Unlock(ctx))
	require.NoError(t, <-closed)
	require.NoError(t, hf.Close(context.Background()))
}

func TestClose_endsContextsBeforeItReleases(t *testing.T) {
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t))
	ctx, lease := lock(t, l)
	var endedWhileTaken atomic.Bool
	stop := context.AfterFunc(ctx, func() { endedWhileTaken.Store(true) })
	defer stop()
	err := hf.Close(within(t, 50*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	var lost *holdfast.LostError
	require.ErrorAs(t, context.Cause(ctx), &lost)
	require.Equal(t, holdfast.ReasonClosed, lost.Reason)
	require.Equal(t, "0", server.Do(t, "EXISTS", key(t)), "released within Timeout although ctx is over")
	require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)
}

func TestObserver_countsExactly(t *testing.T) {
	var acquired, contended, handoffs, refused, released, lost, renewed, stalled atomic.Int64
	observer := holdfast.Observer{
		Acquired: func(_ context.Context, e holdfast.Acquired) {
			acquired.Add(1)
			if e.Attempts > 1 {
				contended.Add(1)
			}
			if e.Handoff {
				handoffs.Add(1)
			}
			if e.Class != "orders" || e.Kind != "reentrant" {
				t.Errorf("%+v", e.Subject)
			}
			panic("an observer that panics breaks nothing")
		},
		Refused:  func(context.Context, holdfast.Refused) { refused.Add(1) },
		Released: func(context.Context, holdfast.Released) { released.Add(1); panic("nor here") },
		Lost:     func(holdfast.Lost) { lost.Add(1); panic("nor here") },
		Renewed:  func(e holdfast.Renewed) { renewed.Add(int64(e.Renewed)) },
		Stalled:  func(holdfast.Stalled) { stalled.Add(1) },
	}
	hf := session(t, redisAddr, holdfast.SessionOptions{Observer: observer, StallAfter: 150 * time.Millisecond})
	l := newLock(t, hf, key(t), holdfast.Options{Class: "orders", Lease: 1500 * time.Millisecond})
	ctx, holder := lock(t, l)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { _ = l.Do(context.Background(), func(context.Context) error { return nil }) })
	}
	waiting(t, hf, 10)
	_, _, err := l.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	redistest.Eventually(t, 20*time.Second, "renewed and stalled", func() bool { return renewed.Load() >= 2 && stalled.Load() >= 1 })
	require.NoError(t, holder.Unlock(ctx))
	wg.Wait()
	ctx, _ = lock(t, l)
	server.Do(t, "DEL", key(t))
	<-ctx.Done()
	redistest.Eventually(t, 20*time.Second, "the loss is told", func() bool { return lost.Load() == 1 })
	require.EqualValues(t, 12, acquired.Load())
	require.EqualValues(t, 11, released.Load())
	require.EqualValues(t, 1, refused.Load())
	t.Logf("%d handed over, %d contended", handoffs.Load(), contended.Load())
}

func TestFor_derivesNames(t *testing.T) {
	hf := session(t, redisAddr, holdfast.SessionOptions{Prefix: "app:"})
	orders := newLock(t, hf, key(t))
	require.Equal(t, "app:"+key(t)+":4711", orders.For("4711").Name())
	_, lease := lock(t, orders.For("4711").For("b"))
	require.Equal(t, "app:"+key(t)+":4711:b", lease.Name())
	require.Equal(t, "1", server.Do(t, "EXISTS", lease.Name()))
	require.NoError(t, lease.Unlock(context.Background()))
}

func TestManyWaitersOnManyNamesNeedFewConnections(t *testing.T) {
	srv := redistest.Run(t)
	theirs := newLock(t, session(t, srv.Addr()), key(t))
	mine := newLock(t, session(t, srv.Addr()), key(t))
	const names = 2000
	leases := make([]*holdfast.Lease, names)
	for i := range names {
		_, leases[i] = lock(t, theirs.For(fmt.Sprint(i)))
	}
	before := srv.Calls(t).Of("hello")
	var wg sync.WaitGroup
	var served atomic.Int64
	for i := range names {
		wg.Go(func() {
			if err := mine.For(fmt.Sprint(i)).Do(within(t, 60*time.Second), func(context.Context) error { return nil }); err == nil {
				served.Add(1)
			}
		})
	}
	subscribed(t, srv, names)
	// One for subscriptions; the client and the administrator may open another.
	require.LessOrEqual(t, srv.Calls(t).Of("hello")-before, int64(3))
	for _, lease := range leases {
		require.NoError(t, lease.Unlock(context.Background()))
	}
	wg.Wait()
	require.EqualValues(t, names, served.Load())
	subscribed(t, srv, 0)
}
