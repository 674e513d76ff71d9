package rwlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/rwlock"
	"github.com/holdfast-go/holdfast/scripts"
)

// A broken is a server, and a proxy that breaks on the way to it.
type broken struct {
	*redistest.Server
	proxy *redistest.Proxy
}

func breakable(t testing.TB) *broken {
	t.Helper()
	srv := redistest.Run(t)
	return &broken{Server: srv, proxy: redistest.NewProxy(t, srv.Addr())}
}

// sha is how a script's command can be told on the wire.
func (b *broken) sha(t testing.TB, s *scripts.Script) string {
	t.Helper()
	return b.Do(t, "SCRIPT", "LOAD", s.Text())
}

// empty waits until no lock is left, the token counter and what others hold excepted.
func (b *broken) empty(t testing.TB) {
	t.Helper()
	redistest.Eventually(t, 20*time.Second, "nothing is left", func() bool {
		return b.Do(t, "EXISTS", key(t)) == "0" && len(b.Keys(t, "*rwlock_timeout*")) == 0
	})
}

// The reply to each command in turn is lost: everything is done once.
func TestFault_X02_X03_aLostReplyIsDoneOnce(t *testing.T) {
	for _, c := range []struct {
		name   string
		script *scripts.Script
		do     func(t *testing.T, l *rwlock.Lock, b *broken)
	}{
		{"read acquire", scripts.RwlockReadAcquire, func(t *testing.T, l *rwlock.Lock, b *broken) {
			_, r := lock(t, l.Reader())
			require.Equal(t, "1", b.Do(t, "HGET", key(t), r.Owner()))
			require.Equal(t, "2", b.Do(t, "HLEN", key(t)))
			unlock(t, r)
		}},
		{"write acquire", scripts.RwlockWriteAcquire, func(t *testing.T, l *rwlock.Lock, b *broken) {
			_, w := lock(t, l.Writer())
			require.Equal(t, "1", b.Do(t, "HGET", key(t), w.Owner()+":write"))
			unlock(t, w)
		}},
		{"nested write", scripts.ReentrantCount, func(t *testing.T, l *rwlock.Lock, b *broken) {
			ctx, w := lock(t, l.Writer())
			_, inner, err := l.Writer().Lock(ctx)
			require.NoError(t, err)
			require.Equal(t, "2", b.Do(t, "HGET", key(t), w.Owner()+":write"))
			unlock(t, inner)
			unlock(t, w)
		}},
		{"read release", scripts.RwlockReadRelease, func(t *testing.T, l *rwlock.Lock, _ *broken) {
			_, r := lock(t, l.Reader())
			unlock(t, r)
		}},
		{"write release", scripts.RwlockWriteRelease, func(t *testing.T, l *rwlock.Lock, _ *broken) {
			_, w := lock(t, l.Writer())
			unlock(t, w)
		}},
		{"downgrade", scripts.RwlockDowngrade, func(t *testing.T, l *rwlock.Lock, b *broken) {
			ctx, w := lock(t, l.Writer())
			_, r, err := l.Writer().Downgrade(ctx, w)
			require.NoError(t, err)
			require.Equal(t, "read", b.Do(t, "HGET", key(t), "mode"))
			unlock(t, r)
		}},
		{"renewal", scripts.RwlockReadRenew, func(t *testing.T, l *rwlock.Lock, _ *broken) {
			ctx, r := lock(t, l.Reader())
			time.Sleep(2 * time.Second) // more than a lease
			require.NoError(t, ctx.Err())
			unlock(t, r)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := breakable(t)
			l := newLock(t, session(t, b.proxy.Addr()), key(t), holdfast.Options{Lease: 1800 * time.Millisecond})
			trap := b.proxy.DropReply(b.sha(t, c.script), 1)
			c.do(t, l, b)
			<-trap.Done()
			b.empty(t)
		})
	}
}

// A caller gives up while its acquire is on the way: nothing stays.
func TestFault_aCancelledAttemptLeavesNoOrphan(t *testing.T) {
	b := breakable(t)
	hf := session(t, b.proxy.Addr())
	l := newLock(t, hf, key(t))
	for _, side := range []holdfast.Locker{l.Reader(), l.Writer()} {
		free(t, side) // the client has its connections from now on
		b.proxy.Delay(time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		_, _, err := side.Lock(ctx)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		b.proxy.Pass()
		b.empty(t)
	}
	require.Zero(t, hf.Stats().Held)
}

// The first copy of an acquire comes seconds after its caller gave up.
func TestFault_aLateCopyOfAnAcquireIsSweptAway(t *testing.T) {
	for side, script := range map[string]*scripts.Script{"read": scripts.RwlockReadAcquire, "write": scripts.RwlockWriteAcquire} {
		t.Run(side, func(t *testing.T) {
			b := breakable(t)
			l := newLock(t, session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 200 * time.Millisecond}), key(t))
			of := holdfast.Locker(l.Reader())
			if side == "write" {
				of = l.Writer()
			}
			hold := b.proxy.HoldRequest(b.sha(t, script))
			_, _, err := of.TryLock(context.Background())
			require.ErrorIs(t, err, holdfast.ErrUnavailable)
			<-hold.Held()
			time.Sleep(300 * time.Millisecond)
			hold.Release()
			redistest.Eventually(t, 20*time.Second, "it is executed, and undone", func() bool {
				calls := b.Calls(t)
				return calls.Of("hset") > 0 && b.Do(t, "EXISTS", key(t)) == "0"
			})
			b.empty(t)
		})
	}
}

func TestFault_aReaderIsToldInASilentSplitBeforeAWriterGetsIn(t *testing.T) {
	t.Parallel()
	b := breakable(t)
	l := newLock(t, session(t, b.proxy.Addr()), key(t), holdfast.Options{Lease: 2 * time.Second})
	ctx, r := lock(t, l.Reader())
	time.Sleep(800 * time.Millisecond) // a renewal
	b.proxy.BlackHole()
	other := newLock(t, session(t, b.Addr()), key(t))
	_, w := lock(t, other.Writer())
	require.False(t, r.Valid(), "over before the other got in")
	<-ctx.Done() // before that too, unless this process stood still just then
	require.ErrorIs(t, context.Cause(ctx), holdfast.ErrLost)
	unlock(t, w)
	b.proxy.Pass()
}

func TestFault_outagesAreNeverTaken(t *testing.T) {
	b := breakable(t)
	l := newLock(t, session(t, b.proxy.Addr()), key(t))
	free(t, l.Reader())
	for _, reply := range []string{"LOADING wait", "READONLY no", "TRYAGAIN moving", "CLUSTERDOWN wait", "OOM full", "BUSY wait"} {
		trap := b.proxy.Answer("EVALSHA", "-"+reply+"\r\n", -1)
		for _, side := range []holdfast.Locker{l.Reader(), l.Writer()} {
			_, _, err := side.TryLock(context.Background())
			require.ErrorIs(t, err, holdfast.ErrUnavailable, reply)
			require.False(t, errors.Is(err, holdfast.ErrNotAcquired), reply)
		}
		trap.Disarm()
	}
}

// A downgrade that cannot be sent says so, and nothing is held.
func TestFault_aDowngradeThatFailsLeavesNothing(t *testing.T) {
	b := breakable(t)
	l := newLock(t, session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 300 * time.Millisecond}), key(t))
	ctx, w := lock(t, l.Writer())
	b.proxy.BlackHole()
	began := time.Now()
	_, r, err := l.Writer().Downgrade(ctx, w)
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	require.Nil(t, r)
	require.Less(t, time.Since(began), 3*time.Second)
	require.ErrorIs(t, context.Cause(ctx), holdfast.ErrNotHeld)
	b.proxy.Pass()
	b.empty(t)
}

func TestLoad_nothingIsRenewedAfterUnlock(t *testing.T) {
	srv := redistest.Run(t)
	l := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Lease: 1500 * time.Millisecond})
	for range 200 {
		_, r := lock(t, l.Reader())
		unlock(t, r)
	}
	before := srv.Calls(t)
	time.Sleep(1600 * time.Millisecond) // three periods
	require.Zero(t, srv.Calls(t).Since(before).Scripts())
	require.Empty(t, srv.Keys(t, "*"))
}

// The rights that docs/client.md lists are enough.
func TestFault_anAclUserNeedsNoMoreThanTheDocumentedLine(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t)
	srv.Do(t, "ACL", "SETUSER", "lock", "on", ">secret", "resetkeys", "resetchannels", "-@all",
		"~"+key(t)+"*", "~{"+key(t)+"*", "~holdfast_rwlock_*", "~redisson_lock_token:*", "&redisson_rwlock:*",
		"+evalsha", "+eval", "+subscribe", "+unsubscribe", "+publish", "+ping", "+hello", "+auth",
		"+hset", "+hdel", "+hexists", "+hmget", "+hgetall", "+exists", "+del", "+get", "+set", "+pttl", "+pexpire", "+time",
		"+hget", "+hlen", "+hscan", "+rename", "+sadd", "+srem", "+sismember", "+zadd", "+zrem", "+zrevrange", "+zremrangebyscore")
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{srv.Addr()}, DisableCache: true, Username: "lock", Password: "secret", ForceSingleClient: true,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	a := newLock(t, sessionOn(t, client), key(t), holdfast.Options{Fencing: true, Lease: 1500 * time.Millisecond})
	b := newLock(t, sessionOn(t, client), key(t), holdfast.Options{Fencing: true})
	done := make(chan error, 3)
	wait := func(side holdfast.Locker) {
		go func() { done <- side.Do(within(t, 20*time.Second), func(context.Context) error { return nil }) }()
	}
	ctx, w := lock(t, a.Writer())
	_, inner, err := a.Writer().Lock(ctx)
	require.NoError(t, err)
	unlock(t, inner)
	wait(b.Reader())
	redistest.Eventually(t, 10*time.Second, "it waits", func() bool { return srv.Do(t, "EXISTS", "holdfast_rwlock_readers:{"+key(t)+"}") == "1" })
	_, r, err := a.Writer().Downgrade(ctx, w)
	require.NoError(t, err)
	require.NoError(t, <-done)
	for i := range 20 { // so many that they are scanned, and all dead
		srv.Do(t, "HSET", key(t), "dead:"+string(rune('a'+i)), "1")
	}
	wait(b.Writer())
	redistest.Eventually(t, 10*time.Second, "it says that it waits", func() bool { return srv.Do(t, "EXISTS", "holdfast_rwlock_writers:{"+key(t)+"}") == "1" })
	time.Sleep(1600 * time.Millisecond) // more than a lease
	require.True(t, r.Valid(), "renewed")
	_, err = a.Reader().Info(context.Background())
	require.NoError(t, err)
	given, giveUp := context.WithCancel(context.Background())
	gave := make(chan error, 1)
	go func() { _, _, err := a.Reader().Lock(given); gave <- err }()
	listening(t, srv, 2) // so it has its answer
	giveUp()
	require.ErrorIs(t, <-gave, holdfast.ErrNotAcquired)
	unlock(t, r)
	require.NoError(t, <-done)
	_, err = a.Reader().ForceUnlock(context.Background())
	require.NoError(t, err)
	require.NotContains(t, srv.Do(t, "ACL", "LOG"), "context lua")

	srv.Do(t, "ACL", "SETUSER", "lock", "-evalsha", "-eval")
	_, _, err = a.Reader().Lock(within(t, 5*time.Second))
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	require.ErrorContains(t, err, "NOPERM")
}
