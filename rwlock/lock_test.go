package rwlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/rwlock"
)

// taken checks that l is not to be had at this moment.
func taken(t testing.TB, l holdfast.Locker) {
	t.Helper()
	_, lease, err := l.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.Nil(t, lease)
}

// free checks that l is to be had at this moment.
func free(t testing.TB, l holdfast.Locker) {
	t.Helper()
	_, lease, err := l.TryLock(context.Background())
	require.NoError(t, err)
	require.NoError(t, lease.Unlock(context.Background()))
}

func unlock(t testing.TB, lease *holdfast.Lease) {
	t.Helper()
	require.NoError(t, lease.Unlock(context.Background()))
}

func TestLock_readersShareAndWritersDoNot(t *testing.T) {
	a, b := newLock(t, session(t, redisAddr), key(t)), newLock(t, session(t, redisAddr), key(t))
	_, r1 := lock(t, a.Reader())
	_, r2 := lock(t, a.Reader())
	_, r3 := lock(t, b.Reader())
	taken(t, a.Writer())
	taken(t, b.Writer())
	unlock(t, r1)
	unlock(t, r3)
	taken(t, b.Writer())
	unlock(t, r2)
	_, w := lock(t, a.Writer())
	taken(t, a.Reader())
	taken(t, b.Reader())
	taken(t, a.Writer())
	taken(t, b.Writer())
	unlock(t, w)
	free(t, b.Reader())
	free(t, b.Writer())
	require.Empty(t, server.Keys(t, key(t)+"*"))
	require.Empty(t, server.Keys(t, "{"+key(t)+"*"))
}

func TestLock_X01_isARedissonReadWriteLock(t *testing.T) {
	for _, name := range []string{key(t), "{tag}" + key(t)} {
		hf := session(t, redisAddr, holdfast.SessionOptions{Label: "me"})
		l := newLock(t, hf, name)
		_, r := lock(t, l.Reader())
		require.True(t, strings.HasPrefix(r.Owner(), "me/"))
		require.Equal(t, "read", server.Do(t, "HGET", name, "mode"))
		require.Equal(t, "1", server.Do(t, "HGET", name, r.Owner()))
		require.Equal(t, "2", server.Do(t, "HLEN", name))
		hold := "{" + name + "}:" + r.Owner() + ":rwlock_timeout:1"
		if strings.Contains(name, "{") {
			hold = name + ":" + r.Owner() + ":rwlock_timeout:1"
		}
		require.Equal(t, "1", server.Do(t, "GET", hold))
		require.NotEqual(t, "-1", server.Do(t, "PTTL", hold))
		unlock(t, r)
		require.Equal(t, "0", server.Do(t, "EXISTS", hold, name))

		ctx, w := lock(t, l.Writer())
		require.Equal(t, "write", server.Do(t, "HGET", name, "mode"))
		require.Equal(t, "1", server.Do(t, "HGET", name, w.Owner()+":write"))
		_, inner, err := l.Writer().Lock(ctx)
		require.NoError(t, err)
		require.Equal(t, "2", server.Do(t, "HGET", name, w.Owner()+":write"))
		require.Equal(t, "2", server.Do(t, "HLEN", name))
		unlock(t, inner)
		require.Equal(t, "1", server.Do(t, "HGET", name, w.Owner()+":write"))
		unlock(t, w)
		require.Equal(t, "0", server.Do(t, "EXISTS", name))
	}
}

func TestReentrance_bothSidesFollowTheContext(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	for name, side := range map[string]interface {
		holdfast.Locker
		Held(context.Context) *holdfast.Lease
	}{"read": l.Reader(), "write": l.Writer()} {
		t.Run(name, func(t *testing.T) {
			ctx, root := lock(t, side)
			require.Equal(t, 1, root.Holds())
			require.Same(t, root, side.Held(ctx))
			require.Nil(t, side.Held(context.Background()))
			inner, nested, err := side.Lock(ctx)
			require.NoError(t, err)
			deep, deeper, err := side.TryLock(inner)
			require.NoError(t, err)
			require.Equal(t, 3, root.Holds())
			require.Equal(t, root.Owner(), deeper.Owner())
			require.Same(t, deeper, side.Held(deep))
			unlock(t, root) // in any order
			require.Equal(t, 2, deeper.Holds())
			taken(t, l.Writer())
			unlock(t, deeper)
			unlock(t, nested)
			require.Zero(t, root.Holds())
			require.ErrorIs(t, nested.Unlock(ctx), holdfast.ErrNotHeld)
			free(t, l.Writer())
		})
	}
}

func TestUpgrade_isRefusedAtOnce(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	ctx, r := lock(t, l.Reader())
	before := server.Calls(t)
	for range 2 { // two that both wanted to would wait for each other
		held, lease, err := l.Writer().Lock(ctx)
		require.ErrorIs(t, err, rwlock.ErrUpgrade)
		require.ErrorContains(t, err, key(t))
		require.Nil(t, lease)
		require.Equal(t, ctx, held)
		_, _, err = l.Writer().TryLock(ctx)
		require.ErrorIs(t, err, rwlock.ErrUpgrade)
		require.ErrorIs(t, l.Writer().Do(ctx, func(context.Context) error { panic("called") }), rwlock.ErrUpgrade)
	}
	require.Zero(t, server.Calls(t).Since(before).Scripts(), "Redis was asked")
	require.True(t, r.Valid(), "the read lease stays")
	unlock(t, r)
	_, w, err := l.Writer().Lock(context.WithoutCancel(ctx))
	require.NoError(t, err, "the read lease of that context is over")
	unlock(t, w)
}

func TestReader_underAWriterReadsAtOnceAndKeepsOthersOut(t *testing.T) {
	a, b := newLock(t, session(t, redisAddr), key(t)), newLock(t, session(t, redisAddr), key(t))
	ctx, w := lock(t, a.Writer())
	waiting := make(chan error, 1)
	go func() { // a reader of this process that waits for the writer is not in its way
		waiting <- a.Reader().Do(within(t, 20*time.Second), func(context.Context) error { return nil })
	}()
	redistest.Eventually(t, 20*time.Second, "one waits", func() bool { return server.Do(t, "EXISTS", "holdfast_rwlock_readers:{"+key(t)+"}") == "1" })
	reading, r, err := a.Reader().Lock(ctx)
	require.NoError(t, err)
	require.NotEqual(t, w.Owner(), r.Owner())
	require.Zero(t, r.Token())
	require.Equal(t, "write", server.Do(t, "HGET", key(t), "mode"))
	_, again, err := a.Reader().TryLock(reading)
	require.NoError(t, err)
	require.Equal(t, 2, r.Holds())
	unlock(t, again)
	_, second, err := a.Reader().TryLock(ctx) // by another goroutine under the writer
	require.NoError(t, err)
	taken(t, b.Reader())
	unlock(t, second)

	// It may write under its own read, since it writes already.
	_, inner, err := a.Writer().Lock(reading)
	require.NoError(t, err)
	require.Equal(t, 2, w.Holds())
	unlock(t, inner)

	unlock(t, w)
	require.ErrorIs(t, context.Cause(reading), holdfast.ErrNotHeld, "its context ends with the writer")
	require.True(t, r.Valid(), "and it reads on until it is unlocked")
	require.NoError(t, <-waiting, "others read too")
	free(t, b.Reader())
	taken(t, b.Writer())
	unlock(t, r)
	free(t, b.Writer())
}

// Between goroutines of a process a writer's lock is handed over without asking Redis, but
// not while there are reads that were a part of it.
func TestReader_underAWriterKeepsWritersOfItsProcessOut(t *testing.T) {
	for _, how := range []string{"read outlives the writer", "downgrade of the outer hold"} {
		t.Run(how, func(t *testing.T) {
			hf := session(t, redisAddr)
			l := newLock(t, hf, key(t))
			for range 20 {
				ctx, w := lock(t, l.Writer())
				var wrote atomic.Bool
				done := make(chan error, 1)
				go func() {
					done <- l.Writer().Do(within(t, 20*time.Second), func(context.Context) error { wrote.Store(true); return nil })
				}()
				waiting(t, hf, 1)
				var r, last *holdfast.Lease
				var err error
				if how == "read outlives the writer" {
					_, r, err = l.Reader().Lock(ctx)
					last = w
				} else {
					var inner *holdfast.Lease
					_, inner, err = l.Writer().Lock(ctx)
					require.NoError(t, err)
					last = inner
					_, r, err = l.Writer().Downgrade(ctx, w)
				}
				require.NoError(t, err)
				unlock(t, last)
				time.Sleep(5 * time.Millisecond)
				require.False(t, wrote.Load(), "a writer beside a reader")
				require.True(t, r.Valid())
				unlock(t, r)
				require.NoError(t, <-done)
			}
		})
	}
}

func TestReader_underAWriterThatIsLostIsLost(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	ctx, w := lock(t, l.Writer())
	server.Do(t, "DEL", key(t))
	_, r, err := l.Reader().Lock(ctx)
	require.ErrorIs(t, err, holdfast.ErrLost)
	var lost *holdfast.LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, key(t), lost.Name)
	require.Nil(t, r)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), holdfast.ErrLost)
	require.ErrorIs(t, w.Unlock(ctx), holdfast.ErrLost)
	free(t, l.Writer())
}

func TestDowngrade_X07_letsReadersInAndNoWriter(t *testing.T) {
	a, b := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Fencing: true}), newLock(t, session(t, redisAddr), key(t))
	type word struct{}
	caller := context.WithValue(within(t, 20*time.Second), word{}, "caller")
	ctx, w, err := a.Writer().Lock(caller)
	require.NoError(t, err)
	require.NotZero(t, w.Token())
	readers := make(chan *holdfast.Lease, 2)
	for _, l := range []*rwlock.Lock{a, b} {
		go func() {
			_, lease, err := l.Reader().Lock(within(t, 20*time.Second))
			if err != nil {
				t.Error(err)
			}
			readers <- lease
		}()
	}
	var writer atomic.Bool
	wrote := make(chan error, 1)
	go func() {
		wrote <- b.Writer().Do(within(t, 20*time.Second), func(context.Context) error { writer.Store(true); return nil })
	}()
	redistest.Eventually(t, 10*time.Second, "both readers are noted", func() bool { return server.Do(t, "SCARD", readersOf(t)) == "2" })

	reading, r, err := a.Writer().Downgrade(ctx, w)
	require.NoError(t, err)
	require.Equal(t, w.Owner(), r.Owner(), "the field of a reader is the writer's without :write")
	require.Zero(t, r.Token())
	require.Equal(t, "caller", reading.Value(word{}))
	require.ErrorIs(t, context.Cause(ctx), holdfast.ErrNotHeld)
	require.NoError(t, reading.Err(), "its context descends from the one that the writer was taken with")
	require.Same(t, r, a.Reader().Held(reading))
	require.Nil(t, a.Writer().Held(reading))
	require.ErrorIs(t, w.Unlock(ctx), holdfast.ErrNotHeld, "the write lease is as unlocked")
	_, _, err = a.Writer().Downgrade(ctx, w)
	require.ErrorIs(t, err, holdfast.ErrNotHeld, "and cannot be downgraded again")
	_, _, err = a.Writer().Lock(reading)
	require.ErrorIs(t, err, rwlock.ErrUpgrade)
	began := time.Now()
	unlock(t, <-readers)
	unlock(t, <-readers)
	require.Less(t, time.Since(began), 10*time.Second, "they were told") // the lease had 30
	require.False(t, writer.Load())
	unlock(t, r)
	require.NoError(t, <-wrote)
}

func TestDowngrade_ofOneOfSeveralHoldsLeavesTheOthersWriting(t *testing.T) {
	a, b := newLock(t, session(t, redisAddr), key(t)), newLock(t, session(t, redisAddr), key(t))
	ctx, outer := lock(t, a.Writer())
	held, inner, err := a.Writer().Lock(ctx)
	require.NoError(t, err)
	reading, r, err := a.Writer().Downgrade(held, inner)
	require.NoError(t, err)
	require.True(t, outer.Valid())
	require.NoError(t, reading.Err())
	require.Equal(t, 1, outer.Holds())
	require.ErrorIs(t, inner.Unlock(ctx), holdfast.ErrNotHeld)
	require.Equal(t, "write", server.Do(t, "HGET", key(t), "mode"))
	taken(t, b.Reader())
	last, w2, err := a.Writer().Downgrade(ctx, outer)
	require.NoError(t, err)
	require.NoError(t, last.Err())
	require.Error(t, reading.Err(), "it descends from the outer write lease")
	require.Equal(t, "read", server.Do(t, "HGET", key(t), "mode"))
	free(t, b.Reader())
	taken(t, b.Writer())
	unlock(t, w2)
	taken(t, b.Writer())
	unlock(t, r)
	free(t, b.Writer())
}

func TestDowngrade_isRefusedForOtherLeases(t *testing.T) {
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t))
	_, _, err := l.Writer().Downgrade(context.Background(), nil)
	require.ErrorIs(t, err, holdfast.ErrNotHeld)
	_, r := lock(t, l.Reader())
	_, _, err = l.Writer().Downgrade(context.Background(), r)
	require.ErrorIs(t, err, holdfast.ErrOption)
	require.True(t, r.Valid())
	unlock(t, r)
	_, w := lock(t, l.For("other").Writer())
	_, _, err = l.Writer().Downgrade(context.Background(), w)
	require.ErrorIs(t, err, holdfast.ErrOption)
	require.True(t, w.Valid())
	unlock(t, w)
}

func TestDowngrade_ofALockThatIsLostSaysSo(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	ctx, w := lock(t, l.Writer())
	server.Do(t, "DEL", key(t))
	_, r, err := l.Writer().Downgrade(ctx, w)
	require.ErrorIs(t, err, holdfast.ErrLost)
	require.Nil(t, r)
	require.ErrorIs(t, w.Unlock(ctx), holdfast.ErrNotHeld)
	require.Empty(t, server.Keys(t, "*"+key(t)+"*"))
}

func TestFencing_writersHaveTokensAndReadersNone(t *testing.T) {
	a, b := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Fencing: true}), newLock(t, session(t, redisAddr), key(t), holdfast.Options{Fencing: true})
	last := uint64(0)
	for _, l := range []*rwlock.Lock{a, b, a, b} {
		ctx, w := lock(t, l.Writer())
		require.Greater(t, w.Token(), last)
		last = w.Token()
		_, inner, err := l.Writer().Lock(ctx)
		require.NoError(t, err)
		require.Equal(t, last, inner.Token())
		unlock(t, inner)
		unlock(t, w)
		_, r := lock(t, l.Reader())
		require.Zero(t, r.Token())
		unlock(t, r)
	}
}

func TestFencing_tokensRiseThroughHandovers(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Fencing: true})
	var mu sync.Mutex
	var tokens []uint64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			held, lease, err := l.Writer().Lock(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			tokens = append(tokens, lease.Token())
			mu.Unlock()
			_ = lease.Unlock(held)
		})
	}
	wg.Wait()
	require.Len(t, tokens, 50)
	for i := 1; i < len(tokens); i++ {
		require.Greater(t, tokens[i], tokens[i-1])
	}
}

func TestMinHold_keepsTheLockAfterTheWriter(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{MinHold: 1500 * time.Millisecond})
	began := time.Now()
	_, w := lock(t, l.Writer())
	unlock(t, w)
	taken(t, l.Reader())
	taken(t, l.Writer())
	_, r := lock(t, l.Reader())
	require.GreaterOrEqual(t, time.Since(began), 1490*time.Millisecond)
	unlock(t, r)
	_, r = lock(t, l.Reader()) // it is not for readers
	unlock(t, r)
	free(t, l.Writer())
}

func TestInfo_saysWhoReadsAndWhoWrites(t *testing.T) {
	a := newLock(t, session(t, redisAddr, holdfast.SessionOptions{Label: "a"}), key(t))
	b := newLock(t, session(t, redisAddr, holdfast.SessionOptions{Label: "b"}), key(t))
	info, err := a.Reader().Info(context.Background())
	require.NoError(t, err)
	require.Equal(t, holdfast.Info{Mode: "free"}, info)
	_, r1 := lock(t, a.Reader())
	_, r2 := lock(t, b.Reader())
	info, err = b.Writer().Info(context.Background())
	require.NoError(t, err)
	require.Equal(t, "read", info.Mode)
	require.ElementsMatch(t, []holdfast.Holder{{Owner: r1.Owner(), Holds: 1}, {Owner: r2.Owner(), Holds: 1}}, info.Holders)
	require.Greater(t, info.TTL, 20*time.Second)
	unlock(t, r1)
	unlock(t, r2)
	_, w := lock(t, a.Writer())
	info, err = b.Reader().Info(context.Background())
	require.NoError(t, err)
	require.Equal(t, "write", info.Mode)
	require.Equal(t, []holdfast.Holder{{Owner: w.Owner(), Holds: 1}}, info.Holders)
	unlock(t, w)
}

func TestForceUnlock_RW15_eachSideTakesItsOwnAway(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	for name, side := range map[string]interface {
		holdfast.Locker
		ForceUnlock(context.Context) (bool, error)
	}{"read": l.Reader(), "write": l.Writer()} {
		t.Run(name, func(t *testing.T) {
			other := l.Writer().ForceUnlock
			if name == "write" {
				other = l.Reader().ForceUnlock
			}
			ctx, lease := lock(t, side)
			was, err := other(context.Background())
			require.NoError(t, err)
			require.False(t, was)
			require.True(t, lease.Valid())
			was, err = side.ForceUnlock(context.Background())
			require.NoError(t, err)
			require.True(t, was)
			<-ctx.Done()
			var lost *holdfast.LostError
			require.ErrorAs(t, context.Cause(ctx), &lost)
			require.Equal(t, holdfast.ReasonForced, lost.Reason)
			require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)
			was, err = side.ForceUnlock(context.Background())
			require.NoError(t, err)
			require.False(t, was)
			free(t, l.Writer())
		})
	}
}

func TestLost_X04_aReaderWhoseHoldIsGoneIsTold(t *testing.T) {
	for _, what := range []string{"hold", "field", "lock", "writer"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 3 * time.Second}) // renewals are 1 s apart
			ctx, r := lock(t, l.Reader())
			switch what {
			case "hold":
				server.Do(t, "DEL", "{"+l.Name()+"}:"+r.Owner()+":rwlock_timeout:1")
			case "field":
				server.Do(t, "HSET", l.Name(), "somebody", "1")
				server.Do(t, "HDEL", l.Name(), r.Owner())
			case "lock":
				server.Do(t, "DEL", l.Name())
			default:
				server.Do(t, "DEL", l.Name())
				server.Do(t, "HSET", l.Name(), "mode", "write", "somebody:write", "1")
			}
			began := time.Now()
			<-ctx.Done()
			require.Less(t, time.Since(began), 2500*time.Millisecond)
			require.ErrorIs(t, context.Cause(ctx), holdfast.ErrLost)
			require.False(t, r.Valid())
			require.ErrorIs(t, r.Unlock(ctx), holdfast.ErrLost)
			server.Do(t, "DEL", l.Name())
		})
	}
}

func TestInput_optionsAreCheckedAtTheDoor(t *testing.T) {
	hf := session(t, redisAddr)
	_, err := rwlock.New(hf, "", rwlock.Options{})
	require.ErrorIs(t, err, holdfast.ErrName)
	_, err = rwlock.New(hf, "a{b", rwlock.Options{})
	require.ErrorIs(t, err, holdfast.ErrName)
	_, err = rwlock.New(hf, "a", rwlock.Options{Options: holdfast.Options{Lease: time.Millisecond}})
	require.ErrorIs(t, err, holdfast.ErrOption)
	_, err = rwlock.New(nil, "a", rwlock.Options{})
	require.ErrorIs(t, err, holdfast.ErrOption)
	l, err := rwlock.New(hf, key(t), rwlock.Options{Options: holdfast.Options{Fencing: true, MinHold: time.Second, Handoff: 3, TokenRetention: time.Hour}})
	require.NoError(t, err, "what concerns writers alone is not refused for readers")
	require.Equal(t, key(t)+":1", l.For("1").Name())
	_, _, err = l.For("").Reader().Lock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrName)
	_, _, err = l.For("").Writer().TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrName)
}

// Other kinds of lock on the name: neither side is granted beside the other.
func TestInput_X19_anotherKindOfLockIsLeftAlone(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	for _, how := range [][]string{{"HSET", key(t), "owner", "1"}, {"SET", key(t), "text"}, {"RPUSH", key(t), "a"}} {
		server.Do(t, how...)
		for _, side := range []holdfast.Locker{l.Reader(), l.Writer()} {
			_, _, err := side.Lock(within(t, 10*time.Second))
			require.ErrorIs(t, err, holdfast.ErrWrongType, how)
			_, _, err = side.TryLock(context.Background())
			require.ErrorIs(t, err, holdfast.ErrWrongType, how)
		}
		_, err := l.Reader().Info(context.Background())
		require.ErrorIs(t, err, holdfast.ErrWrongType)
		_, err = l.Writer().ForceUnlock(context.Background())
		require.ErrorIs(t, err, holdfast.ErrWrongType)
		require.Equal(t, "1", server.Do(t, "EXISTS", key(t)))
		server.Do(t, "DEL", key(t))
	}
}

func TestDo_joinsTheWorksErrorAndTheLoss(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	broken := errors.New("broken")
	for _, side := range []holdfast.Locker{l.Reader(), l.Writer()} {
		require.ErrorIs(t, side.Do(context.Background(), func(context.Context) error { return broken }), broken)
		err := side.Do(context.Background(), func(context.Context) error {
			server.Do(t, "DEL", key(t))
			return broken
		})
		require.ErrorIs(t, err, broken)
		require.ErrorIs(t, err, holdfast.ErrLost)
		require.Panics(t, func() { _ = side.Do(context.Background(), func(context.Context) error { panic("oh") }) })
		free(t, l.Writer())
	}
}

func TestClose_letsReadersGoOnAndReleasesThem(t *testing.T) {
	srv := redistest.Run(t)
	hf := session(t, srv.Addr())
	l := newLock(t, hf, key(t))
	other := newLock(t, session(t, srv.Addr()), key(t))
	_, blocker := lock(t, other.Writer())
	leases := make(chan *holdfast.Lease, 20)
	for range 20 {
		go func() {
			_, lease, err := l.Reader().Lock(context.Background())
			if err != nil {
				t.Error(err)
			}
			leases <- lease
		}()
	}
	waiting(t, hf, 20)
	unlock(t, blocker)
	var all []*holdfast.Lease
	for range 20 {
		all = append(all, <-leases)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	before := srv.Calls(t)
	require.Error(t, hf.Close(ctx), "readers remained")
	for _, lease := range all {
		var lost *holdfast.LostError
		require.ErrorAs(t, context.Cause(lease.Context()), &lost)
		require.Equal(t, holdfast.ReasonClosed, lost.Reason)
	}
	require.LessOrEqual(t, srv.Calls(t).Since(before).Scripts(), int64(2), "one owner is released once")
	require.Empty(t, srv.Keys(t, "*"))
}

func TestSharing_leasesOfOneOwnerAreEachTheirOwn(t *testing.T) {
	srv := redistest.Run(t)
	hf := session(t, srv.Addr())
	l := newLock(t, hf, key(t), holdfast.Options{Lease: 1500 * time.Millisecond, Grace: 100 * time.Millisecond})
	_, blocker := lock(t, newLock(t, session(t, srv.Addr()), key(t)).Writer())
	type reader struct {
		ctx    context.Context
		lease  *holdfast.Lease
		cancel context.CancelFunc
	}
	in := make(chan reader, 3)
	for range 3 {
		go func() {
			ctx, cancel := context.WithCancel(context.Background())
			held, lease, err := l.Reader().Lock(ctx)
			if err != nil {
				t.Error(err)
			}
			in <- reader{held, lease, cancel}
		}()
	}
	waiting(t, hf, 3)
	unlock(t, blocker)
	a, b, c := <-in, <-in, <-in
	require.Equal(t, a.lease.Owner(), b.lease.Owner())
	require.Equal(t, a.lease.Owner(), c.lease.Owner())
	require.Equal(t, "2", srv.Do(t, "HLEN", key(t)))
	require.Equal(t, 3, hf.Stats().Held)

	// Re-entrance is each one's own.
	_, nested, err := l.Reader().Lock(a.ctx)
	require.NoError(t, err)
	require.Equal(t, 2, a.lease.Holds())
	require.Equal(t, 1, b.lease.Holds())
	require.NoError(t, nested.Unlock(a.ctx))

	// So is the end: one whose caller has left is lost after its grace, alone.
	c.cancel()
	redistest.Eventually(t, 20*time.Second, "the abandoned lease is lost", func() bool { return c.lease.State() == holdfast.StateLost })
	var lost *holdfast.LostError
	require.ErrorAs(t, c.lease.Unlock(context.Background()), &lost)
	require.Equal(t, holdfast.ReasonAbandoned, lost.Reason)
	require.True(t, a.lease.Valid())
	unlock(t, a.lease)
	require.ErrorIs(t, a.ctx.Err(), context.Canceled)
	require.NoError(t, b.ctx.Err())
	require.True(t, b.lease.Valid())
	require.Equal(t, "2", srv.Do(t, "HLEN", key(t)), "it stays while one of them reads")

	// Who comes later is another owner.
	_, d := lock(t, l.Reader())
	require.NotEqual(t, b.lease.Owner(), d.Owner())
	unlock(t, d)

	// And the loss of the owner is the loss of all.
	srv.Do(t, "DEL", key(t))
	<-b.ctx.Done()
	require.ErrorIs(t, context.Cause(b.ctx), holdfast.ErrLost)
}

func TestSharing_fixedLeasesShareNothing(t *testing.T) {
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t), holdfast.Options{Lease: 20 * time.Second, Fixed: true})
	_, blocker := lock(t, newLock(t, session(t, redisAddr), key(t)).Writer())
	in := make(chan *holdfast.Lease, 3)
	for range 3 {
		go func() {
			_, lease, err := l.Reader().Lock(context.Background())
			if err != nil {
				t.Error(err)
			}
			in <- lease
		}()
	}
	waiting(t, hf, 3)
	unlock(t, blocker)
	owners := map[string]bool{}
	var all []*holdfast.Lease
	for range 3 {
		lease := <-in
		owners[lease.Owner()] = true
		all = append(all, lease)
	}
	require.Len(t, owners, 3)
	require.NoError(t, all[0].Extend(context.Background(), time.Minute))
	require.Greater(t, all[0].Remaining(), 50*time.Second)
	require.Less(t, all[1].Remaining(), 20*time.Second)
	for _, lease := range all {
		unlock(t, lease)
	}
	require.Equal(t, "0", server.Do(t, "EXISTS", key(t), fmt.Sprintf("holdfast_rwlock_turn:{%s}", key(t))))
}
