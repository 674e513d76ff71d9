package reentrant_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

// What docs/redisson.md and docs/cases.md say and no other test shows.

// java does on the wire what a Java process with a plain or fenced lock does: the
// same commands on the same keys, fields, channels and payloads.
type java struct {
	srv         *redistest.Server
	name, owner string
	fenced      bool
}

// acquire answers -1 for a lock that was taken, with the token if it is fenced,
// and the time to live that a refused owner is told otherwise.
func (j java) acquire(t testing.TB, lease time.Duration) (left int, token uint64) {
	t.Helper()
	const take = `
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
	return redis.call('PTTL', KEYS[1])
end
redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return -1`
	var err error
	left, err = strconv.Atoi(j.srv.Do(t, "EVAL", take, "1", j.name, fmt.Sprint(lease.Milliseconds()), j.owner))
	require.NoError(t, err)
	if left == -1 && j.fenced {
		token, err = strconv.ParseUint(j.srv.Do(t, "INCR", "redisson_lock_token:{"+j.name+"}"), 10, 64)
		require.NoError(t, err)
	}
	return left, token
}

// unlock answers -1 for a lock that is not this owner's, else 1 if the lock is
// free now and 0 if a hold remains.
func (j java) unlock(t testing.TB) string {
	t.Helper()
	const giveBack = `
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return -1 end
if redis.call('HINCRBY', KEYS[1], ARGV[2], -1) > 0 then
	redis.call('PEXPIRE', KEYS[1], ARGV[1])
	return 0
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[2], '0')
return 1`
	return j.srv.Do(t, "EVAL", giveBack, "2", j.name, "redisson_lock__channel:{"+j.name+"}", "30000", j.owner)
}

// messages subscribes to channels and returns what comes, as channel and payload.
func messages(t testing.TB, addr string, channels ...string) <-chan string {
	t.Helper()
	client := connect(t, addr)
	ctx, cancel := context.WithCancel(context.Background())
	got, ready, done := make(chan string, 100), make(chan struct{}, len(channels)), make(chan struct{})
	ctx = rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) { ready <- struct{}{} })
	go func() {
		defer close(done)
		_ = client.Receive(ctx, client.B().Subscribe().Channel(channels...).Build(), func(m rueidis.PubSubMessage) {
			got <- m.Channel + " " + m.Message
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	for range channels {
		<-ready
	}
	return got
}

// next is the message that comes next.
func next(t testing.TB, got <-chan string) string {
	t.Helper()
	select {
	case m := <-got:
		return m
	case <-time.After(20 * time.Second):
		require.Fail(t, "no message")
		return ""
	}
}

func TestScenario_javaAndGoExcludeAndWakeEachOther(t *testing.T) {
	srv := redistest.Run(t)
	j := java{srv: srv, name: key(t), owner: "6f1c2a40-0000-4000-8000-000000000000:42"}
	l := newLock(t, session(t, srv.Addr()), key(t))
	channel := "redisson_lock__channel:{" + key(t) + "}"
	heard := messages(t, srv.Addr(), channel)

	ctx, lease := lock(t, l)
	left, _ := j.acquire(t, 30*time.Second)
	require.InDelta(t, 30_000, left, 2000, "Java is told how long to sleep")
	require.Equal(t, "-1", j.unlock(t), "and cannot unlock it")
	require.NoError(t, lease.Unlock(ctx))
	require.Equal(t, channel+" 0", next(t, heard), "and is woken")

	left, _ = j.acquire(t, 30*time.Second)
	require.Equal(t, -1, left)
	left, _ = j.acquire(t, 30*time.Second)
	require.Equal(t, -1, left, "Java re-enters")
	done := make(chan error, 1)
	go func() { done <- l.Do(within(t, 20*time.Second), func(context.Context) error { return nil }) }()
	redistest.Eventually(t, 10*time.Second, "Go listens as well", func() bool {
		return srv.Do(t, "PUBSUB", "NUMSUB", channel) == channel+" 2"
	})
	require.Equal(t, "0", j.unlock(t))
	select {
	case err := <-done:
		t.Fatal("Go got in beside a hold of Java: ", err)
	case <-time.After(100 * time.Millisecond):
	}
	require.Equal(t, "1", j.unlock(t))
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(15 * time.Second): // the lease has 30 s
		t.Fatal("not woken")
	}
}

func TestScenario_tokensOfJavaAndGoRiseTogether(t *testing.T) {
	j := java{srv: server, name: key(t), owner: "6f1c2a40-0000-4000-8000-000000000000:42", fenced: true}
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Fencing: true, TokenRetention: -1})
	last := uint64(0)
	for range 3 {
		_, token := j.acquire(t, 30*time.Second)
		require.Greater(t, token, last)
		last = token
		require.Equal(t, "1", j.unlock(t))

		ctx, lease := lock(t, l)
		require.Greater(t, lease.Token(), last)
		last = lease.Token()
		require.NoError(t, lease.Unlock(ctx))
		require.Equal(t, "-1", server.Do(t, "PTTL", "redisson_lock_token:{"+key(t)+"}"))
	}
}

func TestScenario_L05_aPartialUnlockKeepsTheLease(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Fixed: true, Lease: 10 * time.Second})
	ctx, root := lock(t, l)
	for range 2 {
		_, nested, err := l.Lock(ctx)
		require.NoError(t, err)
		require.NoError(t, nested.Unlock(ctx))
	}
	ttl, err := strconv.Atoi(server.Do(t, "PTTL", key(t)))
	require.NoError(t, err)
	require.InDelta(t, 8000, ttl, 2000, "neither 30 s nor more than was asked for")
	require.LessOrEqual(t, root.Remaining(), time.Duration(ttl)*time.Millisecond)
	require.NoError(t, root.Unlock(ctx))
}

func TestScenario_L10_eachHoldHasItsOwnLease(t *testing.T) {
	hf := session(t, redisAddr)
	for _, lease := range []time.Duration{time.Hour, 0, 10 * time.Second} {
		ctx, held := lock(t, newLock(t, hf, key(t)+":1", holdfast.Options{Lease: lease}))
		ttl, err := strconv.Atoi(server.Do(t, "PTTL", key(t)+":1"))
		require.NoError(t, err)
		if lease == 0 {
			lease = 30 * time.Second
		}
		require.InDelta(t, lease.Milliseconds(), ttl, 2000)
		require.NoError(t, held.Unlock(ctx))
		require.Equal(t, "-2", server.Do(t, "PTTL", key(t)+":1"))
	}
}

func TestScenario_L14_L15_L16_L18_heldAndInfoFollowTheHold(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	other := newLock(t, session(t, redisAddr), key(t))
	mode := func() string {
		info, err := other.Info(context.Background())
		require.NoError(t, err)
		return info.Mode
	}
	for range 3 {
		require.Equal(t, "free", mode())
		ctx, lease := lock(t, l)
		require.Equal(t, "exclusive", mode())
		require.NotNil(t, l.Held(ctx))
		require.Nil(t, other.Held(ctx), "not by another session")
		require.Nil(t, l.Held(context.Background()), "nor by another caller")
		require.NoError(t, lease.Unlock(ctx))
		require.Nil(t, l.Held(ctx))
		require.Equal(t, "free", mode())
	}
}

func TestScenario_L21_oneUnlockOfTwoKeepsOthersOut(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	other := newLock(t, session(t, redisAddr), key(t))
	ctx, root := lock(t, l)
	_, nested, err := l.TryLock(ctx)
	require.NoError(t, err)
	require.NoError(t, nested.Unlock(ctx))
	_, _, err = other.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.NoError(t, root.Unlock(ctx))
	_, theirs, err := other.TryLock(context.Background())
	require.NoError(t, err)
	require.NoError(t, theirs.Unlock(ctx))
}

func TestScenario_L25_aHundredSessionsCountToAHundred(t *testing.T) {
	client := connect(t, redisAddr)
	count := 0
	var wg sync.WaitGroup
	for range 100 {
		l := newLock(t, sessionOn(t, client), key(t))
		wg.Go(func() {
			if err := l.Do(context.Background(), func(context.Context) error { count++; return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 100, count)
}

func TestScenario_L02_aShortWaitIsEnoughForAShortHold(t *testing.T) {
	srv := redistest.Run(t)
	l := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Wait: 5 * time.Second})
	for range 2 {
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				err := l.For(strconv.Itoa(i%2)).Do(context.Background(), func(context.Context) error { return nil })
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	subscribed(t, srv, 0)
}

// Listeners on keyspace events, Redisson's among them, see what they look for.
func TestScenario_L26_theServersEventsTellOfUnlockAndExpiry(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t)
	srv.Do(t, "CONFIG", "SET", "notify-keyspace-events", "Egx")
	heard := messages(t, srv.Addr(), "__keyevent@0__:del", "__keyevent@0__:expired")
	ctx, lease := lock(t, newLock(t, session(t, srv.Addr()), key(t)))
	require.NoError(t, lease.Unlock(ctx))
	require.Equal(t, "__keyevent@0__:del "+key(t), next(t, heard))
	_, _ = lock(t, newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Fixed: true, Lease: time.Second}))
	require.Equal(t, "__keyevent@0__:expired "+key(t), next(t, heard))
}

func TestScenario_WD03_aRestartThatLosesTheDataIsToldAndLaterLocksAreRenewed(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t)
	l := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Lease: 1500 * time.Millisecond})
	ctx, lease := lock(t, l)
	srv.Kill()
	require.NoError(t, srv.Restart())
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("not told")
	}
	require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)
	for range 2 {
		ctx, lease = lock(t, l)
		time.Sleep(1800 * time.Millisecond) // more than a lease
		require.NoError(t, ctx.Err())
		require.Equal(t, "1", srv.Do(t, "EXISTS", key(t)))
		require.NoError(t, lease.Unlock(ctx))
	}
}

func TestScenario_WD04_aUsedUpNestedHoldDoesNotDisturbTheNextHolder(t *testing.T) {
	t.Parallel()
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 1500 * time.Millisecond})
	ctx, root := lock(t, l)
	_, nested, err := l.Lock(ctx)
	require.NoError(t, err)
	require.NoError(t, nested.Unlock(ctx))
	require.NoError(t, root.Unlock(ctx))
	ctx, lease := lock(t, l)
	time.Sleep(3100 * time.Millisecond) // two leases
	require.NoError(t, ctx.Err())
	require.Equal(t, lease.Owner()+" 1", server.Do(t, "HGETALL", key(t)))
	require.NoError(t, lease.Unlock(ctx))
}

// Nothing is sent when a key is deleted by hand, and waiters do not poll: they
// look when the lease that they know of would have ended.
func TestScenario_aKeyDeletedByHandIsNoticedAtTheEndOfTheKnownLease(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t)
	l := newLock(t, session(t, srv.Addr()), key(t))
	require.NoError(t, l.Do(context.Background(), func(context.Context) error { return nil })) // the scripts are known now
	before := srv.Calls(t)
	srv.Do(t, "HSET", key(t), "somebody", "1")
	srv.Do(t, "PEXPIRE", key(t), "1500")
	began := time.Now()
	var inside atomic.Bool
	done := make(chan error, 1)
	go func() {
		done <- l.Do(within(t, 20*time.Second), func(context.Context) error { inside.Store(true); return nil })
	}()
	subscribed(t, srv, 1)
	redistest.Eventually(t, 10*time.Second, "it has asked again", func() bool {
		return srv.Calls(t).Since(before).Scripts() >= 2
	})
	srv.Do(t, "DEL", key(t))
	time.Sleep(300 * time.Millisecond)
	if time.Since(began) < 1400*time.Millisecond { // on a machine that is not too slow to tell
		require.False(t, inside.Load(), "nobody told it")
	}
	require.NoError(t, <-done)
	require.Less(t, time.Since(began), 10*time.Second)
}

func TestScenario_aWaiterThatWentSilentHoldsUpNobody(t *testing.T) {
	b := breakable(t)
	ctx, lease := lock(t, newLock(t, session(t, b.Addr()), key(t)))
	first := newLock(t, session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 200 * time.Millisecond}), key(t))
	second := newLock(t, session(t, b.Addr()), key(t))
	patience, cancel := context.WithCancel(context.Background())
	gone, done := make(chan error, 1), make(chan error, 1)
	listen := func(n int) {
		channel := "redisson_lock__channel:{" + key(t) + "}"
		redistest.Eventually(t, 10*time.Second, "waiters listen", func() bool {
			return b.Do(t, "PUBSUB", "NUMSUB", channel) == fmt.Sprint(channel, " ", n)
		})
	}
	go func() { gone <- first.Do(patience, func(context.Context) error { return nil }) }()
	listen(1)
	go func() { done <- second.Do(within(t, 20*time.Second), func(context.Context) error { return nil }) }()
	listen(2)
	b.proxy.BlackHole()
	require.NoError(t, lease.Unlock(ctx))
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(15 * time.Second): // the lease has 30 s
		t.Fatal("held up")
	}
	cancel()
	require.Error(t, <-gone)
	b.proxy.Pass()
}

func TestScenario_anEvictedLockIsTold(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t, redistest.Options{Args: []string{"--maxmemory-policy", "allkeys-random"}})
	ctx, lease := lock(t, newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Lease: 3 * time.Second})) // renewals are 1 s apart
	srv.Do(t, "CONFIG", "SET", "maxmemory", "1")
	redistest.Eventually(t, 20*time.Second, "it is evicted", func() bool {
		_, _ = srv.TryDo("SET", "more", "data") // refused or not: it makes room first
		return srv.Do(t, "EXISTS", key(t)) == "0"
	})
	srv.Do(t, "CONFIG", "SET", "maxmemory", "0")
	select {
	case <-ctx.Done():
	case <-time.After(2500 * time.Millisecond):
		t.Fatal("not told at the next renewal")
	}
	require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)
}
