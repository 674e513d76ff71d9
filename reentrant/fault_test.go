package reentrant_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/scripts"
)

// broken is a server behind a proxy that can break the way to it.
type broken struct {
	*redistest.Server
	proxy *redistest.Proxy
}

func breakable(t testing.TB) *broken {
	t.Helper()
	srv := redistest.Run(t)
	return &broken{Server: srv, proxy: redistest.NewProxy(t, srv.Addr())}
}

// sha is how a script's command can be told on the wire: Redis is asked by the
// SHA-1 of its text.
func sha(t testing.TB, srv *redistest.Server, s *scripts.Script) string {
	t.Helper()
	return srv.Do(t, "SCRIPT", "LOAD", s.Text())
}

func TestFault_X03_aResentAcquireCountsOnce(t *testing.T) {
	b := breakable(t)
	l := newLock(t, session(t, b.proxy.Addr()), key(t), holdfast.Options{Fencing: true})
	acquire := sha(t, b.Server, scripts.ReentrantAcquireFenced)
	trap := b.proxy.DropReply(acquire, 1)
	ctx, lease := lock(t, l)
	<-trap.Done()
	require.Equal(t, lease.Owner()+" 1", b.Do(t, "HGETALL", key(t)))
	require.Equal(t, fmt.Sprint(lease.Token()), b.Do(t, "GET", "redisson_lock_token:{"+key(t)+"}"), "and mints once")
	require.NoError(t, lease.Unlock(ctx))
	require.Equal(t, "0", b.Do(t, "EXISTS", key(t)))
}

func TestFault_aResentNestedAcquireCountsOnce(t *testing.T) {
	b := breakable(t)
	l := newLock(t, session(t, b.proxy.Addr()), key(t))
	ctx, lease := lock(t, l)
	trap := b.proxy.DropReply(sha(t, b.Server, scripts.ReentrantCount), 1)
	_, nested, err := l.Lock(ctx)
	require.NoError(t, err)
	<-trap.Done()
	require.Equal(t, lease.Owner()+" 2", b.Do(t, "HGETALL", key(t)))
	require.NoError(t, nested.Unlock(ctx))
	require.NoError(t, lease.Unlock(ctx))
}

func TestFault_X02_anUnlockWhoseReplyIsLostIsDone(t *testing.T) {
	for _, receipts := range []bool{false, true} {
		t.Run(fmt.Sprint("receipts=", receipts), func(t *testing.T) {
			b := breakable(t)
			l := newLock(t, session(t, b.proxy.Addr(), holdfast.SessionOptions{Receipts: receipts}), key(t))
			script := scripts.ReentrantRelease
			if receipts {
				script = scripts.ReentrantReleaseReceipt
			}
			trap := b.proxy.DropReply(sha(t, b.Server, script), 1)
			ctx, lease := lock(t, l)
			require.NoError(t, lease.Unlock(ctx))
			<-trap.Done()
			require.Equal(t, "0", b.Do(t, "EXISTS", key(t)))
			for _, k := range b.Keys(t, "*") {
				require.NotEqual(t, "-1", b.Do(t, "PTTL", k), k)
			}
		})
	}
}

func TestFault_receiptsTellADoneReleaseFromALostLease(t *testing.T) {
	b := breakable(t)
	l := newLock(t, session(t, b.proxy.Addr(), holdfast.SessionOptions{Receipts: true}), key(t))
	hold := b.proxy.HoldRequest(sha(t, b.Server, scripts.ReentrantReleaseReceipt))
	ctx, lease := lock(t, l)
	done := make(chan error, 1)
	go func() { done <- lease.Unlock(ctx) }()
	<-hold.Held()
	b.Do(t, "DEL", key(t)) // lost before the release got there, and then the connection dies
	b.proxy.KillAll()
	hold.Release()
	require.ErrorIs(t, <-done, holdfast.ErrLost)
}

func TestFault_aCancelledAttemptLeavesNoOrphan(t *testing.T) {
	b := breakable(t)
	hf := session(t, b.proxy.Addr())
	l := newLock(t, hf, key(t))
	hold := b.proxy.HoldReply(sha(t, b.Server, scripts.ReentrantAcquire))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, _, err := l.Lock(ctx)
		done <- err
	}()
	<-hold.Held()
	require.Equal(t, "1", b.Do(t, "EXISTS", key(t)), "it was executed")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	hold.Release()
	redistest.Eventually(t, 10*time.Second, "the orphan is gone", func() bool { return b.Do(t, "EXISTS", key(t)) == "0" })
	require.Zero(t, hf.Stats().Held)
}

func TestFault_aLateCopyOfAnAcquireIsSweptAway(t *testing.T) {
	b := breakable(t)
	hf := session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 100 * time.Millisecond})
	l := newLock(t, hf, key(t))
	hold := b.proxy.HoldRequest(sha(t, b.Server, scripts.ReentrantAcquire))
	_, _, err := l.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	redistest.Eventually(t, 10*time.Second, "the attempt is condemned", func() bool { return hf.Stats().Condemned == 1 })
	<-hold.Held()
	b.proxy.KillAll() // the client goes on over a new connection
	time.Sleep(50 * time.Millisecond)
	hold.Release()
	redistest.Eventually(t, 10*time.Second, "no key", func() bool { return b.Do(t, "EXISTS", key(t)) == "0" })
}

func TestFault_aGrantThatComesAfterItsLeaseIsNotReturned(t *testing.T) {
	t.Parallel()
	b := breakable(t)
	l := newLock(t, session(t, b.proxy.Addr()), key(t), holdfast.Options{Lease: 1200 * time.Millisecond})
	hold := b.proxy.HoldReply(sha(t, b.Server, scripts.ReentrantAcquire))
	type result struct {
		lease *holdfast.Lease
		err   error
	}
	done := make(chan result, 1)
	go func() {
		_, lease, err := l.Lock(within(t, 10*time.Second))
		done <- result{lease, err}
	}()
	<-hold.Held()
	time.Sleep(1300 * time.Millisecond)
	hold.Release()
	r := <-done
	require.NoError(t, r.err)
	require.True(t, r.lease.Valid())
	require.Equal(t, r.lease.Owner()+" 1", b.Do(t, "HGETALL", key(t)), "it is another owner's grant")
	require.NoError(t, r.lease.Unlock(context.Background()))
}

func TestFault_aLateUnlockSparesTheNextLockOfTheSameProcess(t *testing.T) {
	b := breakable(t)
	hf := session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 500 * time.Millisecond})
	l := newLock(t, hf, key(t))
	ctx, first := lock(t, l)
	var holds []*redistest.Hold
	for range 3 { // it may just come to be repeated
		holds = append(holds, b.proxy.HoldReply(sha(t, b.Server, scripts.ReentrantRelease)))
	}
	err := first.Unlock(ctx)
	require.ErrorIs(t, err, holdfast.ErrUnknown)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	for _, hold := range holds {
		hold.Release()
	}
	_, second := lock(t, l)
	require.ErrorIs(t, first.Unlock(ctx), holdfast.ErrNotHeld)
	redistest.Eventually(t, 20*time.Second, "the release is over", func() bool { return hf.Stats().Held == 1 })
	require.Equal(t, second.Owner()+" 1", b.Do(t, "HGETALL", key(t)))
	require.NoError(t, second.Unlock(ctx))
}

func TestFault_anUnlockThatFailsStopsTheWatchdog(t *testing.T) {
	t.Parallel()
	b := breakable(t)
	l := newLock(t, session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 200 * time.Millisecond}), key(t),
		holdfast.Options{Lease: 2 * time.Second})
	ctx, lease := lock(t, l)
	b.proxy.BlackHole()
	require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrUnknown)
	b.proxy.Pass()
	redistest.Eventually(t, 10*time.Second, "the key is gone", func() bool { return b.Do(t, "EXISTS", key(t)) == "0" })
}

func TestFault_theHolderIsToldInASilentSplit(t *testing.T) {
	t.Parallel()
	b := breakable(t)
	ctx, lease := lock(t, newLock(t, session(t, b.proxy.Addr()), key(t), holdfast.Options{Lease: 2 * time.Second}))
	other := newLock(t, session(t, b.Addr()), key(t))
	b.proxy.BlackHole()
	_, theirs := lock(t, other)
	require.False(t, lease.Valid(), "over before the other got in")
	<-ctx.Done() // before that too, unless this process stood still just then
	require.ErrorIs(t, context.Cause(ctx), holdfast.ErrLost)
	require.NoError(t, theirs.Unlock(context.Background()))
}

func TestFault_aHiccupCostsNoLock(t *testing.T) {
	t.Parallel()
	b := breakable(t)
	ctx, lease := lock(t, newLock(t, session(t, b.proxy.Addr()), key(t), holdfast.Options{Lease: 2400 * time.Millisecond}))
	for range 3 {
		b.proxy.Refuse()
		time.Sleep(700 * time.Millisecond) // nearly a period
		b.proxy.Pass()
		time.Sleep(500 * time.Millisecond)
		require.NoError(t, ctx.Err())
	}
	require.NoError(t, lease.Unlock(ctx))
}

func TestFault_aReleaseBeforeTheSubscriptionIsNotMissed(t *testing.T) {
	b := breakable(t)
	_, theirs := lock(t, newLock(t, session(t, b.Addr()), key(t)))
	l := newLock(t, session(t, b.proxy.Addr()), key(t))
	hold := b.proxy.HoldReply("SUBSCRIBE redisson_lock__channel")
	done := make(chan error, 1)
	go func() {
		_, lease, err := l.Lock(within(t, 20*time.Second))
		if err == nil {
			err = lease.Unlock(context.Background())
		}
		done <- err
	}()
	<-hold.Held()
	require.NoError(t, theirs.Unlock(context.Background()))
	hold.Release()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(15 * time.Second): // the lease had 30 s
		t.Fatal("still asleep on a free lock")
	}
}

func TestFault_aReleaseInAReconnectIsNotMissed(t *testing.T) {
	b := breakable(t)
	_, theirs := lock(t, newLock(t, session(t, b.Addr()), key(t)))
	hf := session(t, b.proxy.Addr())
	l := newLock(t, hf, key(t))
	done := make(chan error, 1)
	go func() { done <- l.Do(within(t, 20*time.Second), func(context.Context) error { return nil }) }()
	subscribed(t, b.Server, 1)
	b.proxy.Refuse()
	require.NoError(t, theirs.Unlock(context.Background()))
	b.proxy.Pass()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(15 * time.Second): // the lease had 30 s
		t.Fatal("still asleep on a free lock")
	}
}

func TestFault_aCrashedHoldersLeaseEndsAndWakesNobodyLate(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t)
	name := key(t)
	srv.Do(t, "HSET", name, "a crashed holder", "1")
	srv.Do(t, "PEXPIRE", name, "1000")
	began := time.Now()
	_, lease := lock(t, newLock(t, session(t, srv.Addr()), name))
	require.Less(t, time.Since(began), 3*time.Second) // who does not know its end looks after five
	require.NoError(t, lease.Unlock(context.Background()))
}

func TestFault_strayMessagesCostOneTryEach(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t)
	_, theirs := lock(t, newLock(t, session(t, srv.Addr()), key(t)))
	l := newLock(t, session(t, srv.Addr()), key(t))
	done := make(chan struct{})
	go func() { defer close(done); _, _, _ = l.Lock(within(t, 3*time.Second)) }()
	subscribed(t, srv, 1)
	before := srv.Calls(t)
	const messages = 20
	for range messages {
		srv.Do(t, "PUBLISH", "redisson_lock__channel:{"+key(t)+"}", "0")
	}
	<-done
	// And a few looks around the subscription, if the machine is slow to confirm it.
	require.LessOrEqual(t, srv.Calls(t).Since(before).Scripts(), int64(messages+10))
	require.NoError(t, theirs.Unlock(context.Background()))
}

func TestFault_outagesAreNeverTaken(t *testing.T) {
	b := breakable(t)
	options := holdfast.SessionOptions{Timeout: 2 * time.Second}
	t.Run("black hole", func(t *testing.T) {
		l := newLock(t, session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 200 * time.Millisecond}), "bh")
		require.NoError(t, l.Do(context.Background(), func(context.Context) error { return nil }))
		b.proxy.BlackHole()
		began := time.Now()
		_, _, err := l.TryLock(context.Background())
		require.Less(t, time.Since(began), 2*time.Second)
		require.ErrorIs(t, err, holdfast.ErrUnavailable)
		require.NotErrorIs(t, err, holdfast.ErrNotAcquired)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		_, _, err = l.Lock(within(t, 300*time.Millisecond))
		require.ErrorIs(t, err, holdfast.ErrUnavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded, "the caller's own")
		b.proxy.Pass()
		b.proxy.KillAll()
		require.NoError(t, l.Do(within(t, 10*time.Second), func(context.Context) error { return nil }))
	})
	for _, reply := range []string{"LOADING Redis is loading", "BUSY a script", "READONLY replica", "MISCONF disk", "OOM memory", "CLUSTERDOWN x", "MASTERDOWN x", "TRYAGAIN x", "NOREPLICAS x"} {
		t.Run(reply, func(t *testing.T) {
			var mu sync.Mutex
			var retried []error
			trap := b.proxy.Answer("EVALSHA", "-"+reply+"\r\n", -1)
			o := options
			o.Observer.Retried = func(_ context.Context, e holdfast.Retried) {
				mu.Lock()
				defer mu.Unlock()
				if retried = append(retried, e.Err); len(retried) == 3 {
					trap.Disarm() // the outage is over
				}
			}
			l := newLock(t, session(t, b.proxy.Addr(), o), key(t))
			_, _, err := l.TryLock(context.Background())
			require.ErrorIs(t, err, holdfast.ErrUnavailable)
			require.NotErrorIs(t, err, holdfast.ErrNotAcquired)
			require.ErrorContains(t, err, reply)
			require.ErrorContains(t, err, key(t))
			require.NoError(t, l.Do(within(t, 20*time.Second), func(context.Context) error { return nil }), "ridden out")
			mu.Lock()
			defer mu.Unlock()
			require.NotEmpty(t, retried)
			require.ErrorContains(t, retried[0], reply)
		})
	}
	for _, reply := range []string{"NOPERM this user has no permissions", "NOAUTH Authentication required."} {
		t.Run(reply, func(t *testing.T) {
			l := newLock(t, session(t, b.proxy.Addr(), options), key(t))
			trap := b.proxy.Answer("EVALSHA", "-"+reply+"\r\n", -1)
			defer trap.Disarm()
			_, _, err := l.Lock(within(t, 5*time.Second))
			require.ErrorIs(t, err, holdfast.ErrUnavailable)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "at once")
			require.ErrorContains(t, err, reply)
		})
	}
	t.Run("stopped", func(t *testing.T) {
		l := newLock(t, session(t, b.proxy.Addr(), options), "st")
		b.Kill()
		_, _, err := l.TryLock(context.Background())
		require.ErrorIs(t, err, holdfast.ErrUnavailable)
		require.NotErrorIs(t, err, holdfast.ErrNotAcquired)
	})
}

func TestFault_scriptFlushCostsOneRoundTrip(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t)
	l := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Lease: 1500 * time.Millisecond})
	for range 3 {
		srv.Do(t, "SCRIPT", "FLUSH")
		ctx, lease := lock(t, l)
		srv.Do(t, "SCRIPT", "FLUSH")
		_, nested, err := l.Lock(ctx)
		require.NoError(t, err)
		srv.Do(t, "SCRIPT", "FLUSH")
		time.Sleep(700 * time.Millisecond) // a renewal
		require.NoError(t, ctx.Err())
		srv.Do(t, "SCRIPT", "FLUSH")
		require.NoError(t, nested.Unlock(ctx))
		srv.Do(t, "SCRIPT", "FLUSH")
		require.NoError(t, lease.Unlock(ctx))
	}
}

func TestFault_withoutPubSubWaitersPoll(t *testing.T) {
	b := breakable(t)
	b.proxy.Answer("SUBSCRIBE", "-ERR unknown command 'SUBSCRIBE'\r\n", -1)
	_, theirs := lock(t, newLock(t, session(t, b.Addr()), key(t)))
	l := newLock(t, session(t, b.proxy.Addr()), key(t))
	done := make(chan error, 1)
	go func() { done <- l.Do(within(t, 20*time.Second), func(context.Context) error { return nil }) }()
	time.Sleep(300 * time.Millisecond)
	require.NoError(t, theirs.Unlock(context.Background()))
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(15 * time.Second): // the lease had 30 s
		t.Fatal("asleep")
	}
}

func TestFault_worksOverRESP2(t *testing.T) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redisAddr}, DisableCache: true, AlwaysRESP2: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	hf := sessionOn(t, client)
	l := newLock(t, hf, key(t), holdfast.Options{Fencing: true, Lease: 1500 * time.Millisecond})
	_, theirs := lock(t, newLock(t, session(t, redisAddr), key(t)))
	done := make(chan error, 1)
	go func() {
		done <- l.Do(within(t, 20*time.Second), func(context.Context) error {
			time.Sleep(1800 * time.Millisecond) // more than a lease
			return nil
		})
	}()
	subscribed(t, server, 1)
	require.NoError(t, theirs.Unlock(context.Background()))
	require.NoError(t, <-done)
}

func TestFault_anAclUserNeedsNoMoreThanTheDocumentedLine(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t)
	srv.Do(t, "ACL", "SETUSER", "lock", "on", ">secret", "resetkeys", "resetchannels", "-@all",
		"~"+key(t)+"*", "~redisson_lock_token:*", "~redisson_unlock_latch:*", "&redisson_lock__channel:*",
		"+evalsha", "+eval", "+subscribe", "+unsubscribe", "+publish", "+ping", "+hello", "+auth",
		"+hset", "+hdel", "+hexists", "+hmget", "+hgetall", "+exists", "+del", "+get", "+set", "+pttl", "+pexpire", "+time")
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{srv.Addr()}, DisableCache: true, Username: "lock", Password: "secret", ForceSingleClient: true,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	hf := sessionOn(t, client, holdfast.SessionOptions{Receipts: true})
	l := newLock(t, hf, key(t), holdfast.Options{Fencing: true, Lease: 1500 * time.Millisecond})
	ctx, lease := lock(t, l)
	_, nested, err := l.Lock(ctx)
	require.NoError(t, err)
	time.Sleep(1800 * time.Millisecond) // more than a lease
	require.NoError(t, ctx.Err())
	done := make(chan error, 1)
	other := newLock(t, sessionOn(t, client), key(t))
	go func() { done <- other.Do(within(t, 10*time.Second), func(context.Context) error { return nil }) }()
	subscribed(t, srv, 1)
	_, err = l.Info(ctx)
	require.NoError(t, err)
	require.NoError(t, nested.Unlock(ctx))
	require.NoError(t, lease.Unlock(ctx))
	require.NoError(t, <-done)
	_, err = l.ForceUnlock(context.Background())
	require.NoError(t, err)

	srv.Do(t, "ACL", "SETUSER", "lock", "-evalsha", "-eval")
	_, _, err = l.Lock(within(t, 5*time.Second))
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	require.ErrorContains(t, err, "NOPERM")
}

func TestFault_aServerRestartWithAOFKeepsTheHolder(t *testing.T) {
	srv := redistest.Run(t, redistest.Options{Args: []string{"--appendonly", "yes", "--appendfsync", "always"}})
	l := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Lease: 15 * time.Second})
	ctx, lease := lock(t, l)
	srv.Kill()
	require.NoError(t, srv.Restart())
	_, _, err := newLock(t, session(t, srv.Addr()), key(t)).TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.NoError(t, ctx.Err())
	require.NoError(t, lease.Unlock(ctx))
}

func TestFault_aSweepThatFailsIsSoonTriedAgain(t *testing.T) {
	b := breakable(t)
	l := newLock(t, session(t, b.proxy.Addr()), key(t))
	b.proxy.DropReply(sha(t, b.Server, scripts.ReentrantAcquire), 1)
	b.proxy.Answer(sha(t, b.Server, scripts.ReentrantRelease), "-LOADING a moment\r\n", 1)
	_, _, err := l.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	redistest.Eventually(t, 5*time.Second, "the orphan is gone", func() bool { return b.Do(t, "EXISTS", key(t)) == "0" })
}

func TestFault_aTryLockIsNotRefusedByAnAnswerFromBeforeIt(t *testing.T) {
	b := breakable(t)
	held, theirs := lock(t, newLock(t, session(t, b.Addr()), key(t)))
	hf := session(t, b.proxy.Addr())
	l := newLock(t, hf, key(t))
	reply := b.proxy.HoldReply(sha(t, b.Server, scripts.ReentrantAcquire))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { _, _, err := l.Lock(ctx); done <- err }()
	<-reply.Held() // the answer is "taken"
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, theirs.Unlock(held))
	go func() { _, _, err := l.TryLock(context.Background()); done <- err }()
	waiting(t, hf, 1)
	reply.Release()
	require.NoError(t, <-done)
}
