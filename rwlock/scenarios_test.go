package rwlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
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

// What docs/redisson.md and docs/cases.md say of read-write locks and no other test
// shows. Times are shorter than Redisson's own tests have them.

// java does on the wire what a thread of a Java process with a read-write lock does:
// the same commands on the same keys, fields, channels and payloads.
type java struct {
	srv         *redistest.Server
	name, owner string
}

func (j java) eval(t testing.TB, body string, keys []string, args ...string) string {
	t.Helper()
	return j.srv.Do(t, append(append([]string{"EVAL", body, strconv.Itoa(len(keys))}, keys...), args...)...)
}

func (j java) channel() string { return "redisson_rwlock:{" + j.name + "}" }

// read answers "nil" as "", or the time to live that a refused owner is told.
func (j java) read(t testing.TB, lease time.Duration) string {
	t.Helper()
	return j.eval(t, `
local mode = redis.call('HGET', KEYS[1], 'mode')
if mode and mode ~= 'read' and redis.call('HEXISTS', KEYS[1], ARGV[2] .. ':write') == 0 then
	return redis.call('PTTL', KEYS[1])
end
if not mode then redis.call('HSET', KEYS[1], 'mode', 'read') end
local n = redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
redis.call('SET', KEYS[2] .. ':' .. n, 1, 'PX', ARGV[1])
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[1]))
return nil`, []string{j.name, "{" + j.name + "}:" + j.owner + ":rwlock_timeout"}, fmt.Sprint(lease.Milliseconds()), j.owner)
}

func (j java) readUnlock(t testing.TB) string {
	t.Helper()
	return j.eval(t, `
local timeouts = '{' .. KEYS[1] .. '}:'
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 'not held' end
local n = redis.call('HINCRBY', KEYS[1], ARGV[1], -1)
if n == 0 then redis.call('HDEL', KEYS[1], ARGV[1]) end
redis.call('DEL', timeouts .. ARGV[1] .. ':rwlock_timeout:' .. (n + 1))
if redis.call('HLEN', KEYS[1]) > 1 then
	local longest = -3
	for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
		local count = tonumber(redis.call('HGET', KEYS[1], field))
		for i = count or 0, 1, -1 do
			longest = math.max(longest, redis.call('PTTL', timeouts .. field .. ':rwlock_timeout:' .. i))
		end
	end
	if longest > 0 then
		redis.call('PEXPIRE', KEYS[1], longest)
		return 0
	end
	if redis.call('HGET', KEYS[1], 'mode') == 'write' then return 0 end
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[2], '0')
return 1`, []string{j.name, j.channel()}, j.owner)
}

func (j java) write(t testing.TB, lease time.Duration) string {
	t.Helper()
	return j.eval(t, `
local mode = redis.call('HGET', KEYS[1], 'mode')
if not mode then
	redis.call('HSET', KEYS[1], 'mode', 'write', ARGV[2], 1)
	redis.call('PEXPIRE', KEYS[1], ARGV[1])
	return nil
end
if mode == 'write' and redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
	redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
	redis.call('PEXPIRE', KEYS[1], redis.call('PTTL', KEYS[1]) + ARGV[1])
	return nil
end
return redis.call('PTTL', KEYS[1])`, []string{j.name}, fmt.Sprint(lease.Milliseconds()), j.owner+":write")
}

func (j java) writeUnlock(t testing.TB) string {
	t.Helper()
	return j.eval(t, `
if redis.call('HGET', KEYS[1], 'mode') ~= 'write' or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 'not held' end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
if redis.call('HLEN', KEYS[1]) == 1 then
	redis.call('DEL', KEYS[1])
	redis.call('PUBLISH', KEYS[2], '1')
else
	redis.call('HSET', KEYS[1], 'mode', 'read')
end
return 1`, []string{j.name, j.channel()}, j.owner+":write")
}

func (j java) holds(t testing.TB) string { t.Helper(); return j.srv.Do(t, "HGET", j.name, j.owner) }

func threadOf(t testing.TB, n int) java {
	return java{srv: server, name: key(t), owner: fmt.Sprintf("0b7c2a8e-6d1d-4b3f-9a5c-1f0e8d7c6b5a:%d", n)}
}

func TestScenario_X08_javaAndGoReadTogetherAndExcludeEachOther(t *testing.T) {
	l, j := newLock(t, session(t, redisAddr), key(t)), threadOf(t, 7)
	_, r := lock(t, l.Reader())
	require.Empty(t, j.read(t, 30*time.Second), "both read")
	require.NotEmpty(t, j.write(t, 30*time.Second))
	taken(t, l.Writer())
	require.Equal(t, "0", j.readUnlock(t), "Java takes the Go reader for a live one")
	require.Equal(t, "read", server.Do(t, "HGET", key(t), "mode"))
	require.True(t, r.Valid())
	unlock(t, r)
	require.Empty(t, j.write(t, 30*time.Second), "free")
	taken(t, l.Reader())
	taken(t, l.Writer())
	require.Equal(t, "1", j.writeUnlock(t))
	_, w := lock(t, l.Writer())
	require.NotEmpty(t, j.read(t, 30*time.Second))
	require.NotEmpty(t, j.write(t, 30*time.Second))
	require.Equal(t, "not held", j.writeUnlock(t))
	unlock(t, w)
	require.Empty(t, j.read(t, 30*time.Second))
	require.Equal(t, "1", j.readUnlock(t))
	require.Empty(t, server.Keys(t, "*"+key(t)+"*"))
}

func TestScenario_javaAndGoWakeEachOther(t *testing.T) {
	hf := session(t, redisAddr)
	l, j := newLock(t, hf, key(t)), threadOf(t, 7)
	heard := messages(t, redisAddr, j.channel())
	for _, c := range []struct {
		name         string
		take         func(testing.TB, time.Duration) string
		release      func(testing.TB) string
		side         holdfast.Locker
		theirs, ours string
	}{
		{"a reader by a writer", j.write, j.writeUnlock, l.Reader(), "1", "0"},
		{"a writer by a writer", j.write, j.writeUnlock, l.Writer(), "1", "1"},
		{"a writer by a reader", j.read, j.readUnlock, l.Writer(), "0", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Empty(t, c.take(t, time.Minute))
			done := make(chan error, 1)
			go func() {
				done <- c.side.Do(within(t, 20*time.Second), func(context.Context) error { return nil })
			}()
			waiting(t, hf, 1)
			redistest.Eventually(t, 10*time.Second, "it listens", func() bool { return server.Do(t, "PUBSUB", "NUMSUB", j.channel()) == j.channel()+" 2" })
			require.Equal(t, "1", c.release(t))
			require.NoError(t, <-done)
			require.Equal(t, c.theirs, <-heard)
			require.Equal(t, c.ours, <-heard, "what Java is told")
		})
	}
}

// messages subscribes to a channel and returns what comes.
func messages(t testing.TB, addr, channel string) <-chan string {
	t.Helper()
	c, release := connect(t, addr).Dedicate()
	t.Cleanup(release)
	got, ready := make(chan string, 100), make(chan struct{}, 1)
	hear(c, got, ready)
	require.NoError(t, c.Do(context.Background(), c.B().Subscribe().Channel(channel).Build()).Error())
	<-ready
	return got
}

// A Java reader that dies keeps Go writers out for its own lease, and a nested hold of
// it for that one's.
func TestScenario_aDeadJavaReaderAmongLiveOnes(t *testing.T) {
	l, dead := newLock(t, session(t, redisAddr), key(t)), threadOf(t, 1)
	began := time.Now()
	require.Empty(t, dead.read(t, 700*time.Millisecond))
	require.Empty(t, dead.read(t, 1500*time.Millisecond))
	_, r := lock(t, l.Reader()) // lengthens the TTL of the lock to 30 s
	unlock(t, r)
	require.Greater(t, server.Do(t, "PTTL", key(t)), "10000")
	_, w := lock(t, l.Writer())
	require.GreaterOrEqual(t, time.Since(began), 1490*time.Millisecond)
	require.Less(t, time.Since(began), 10*time.Second)
	unlock(t, w)
}

// A Java writer that waits sleeps on the TTL that it was told. A Go reader that leaves
// only dead ones behind lowers it, and says so.
func TestScenario_javaWritersHearOfDeadReadersToo(t *testing.T) {
	l, dead := newLock(t, session(t, redisAddr), key(t)), threadOf(t, 1)
	heard := messages(t, redisAddr, dead.channel())
	require.Empty(t, dead.read(t, 900*time.Millisecond))
	_, r := lock(t, newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 10 * time.Minute, Fixed: true}).Reader())
	require.Greater(t, pttl(t, key(t)), 9*time.Minute)
	unlock(t, r)
	require.Equal(t, "0", <-heard)
	require.Less(t, pttl(t, key(t)), time.Second)

	// And one that was dead already goes at once.
	require.Empty(t, dead.read(t, 20*time.Millisecond))
	_, r = lock(t, l.Reader())
	time.Sleep(30 * time.Millisecond)
	server.Do(t, "HSET", key(t), dead.owner, "2") // the other hold of which has ended too
	redistest.Eventually(t, 20*time.Second, "it ends", func() bool {
		return server.Do(t, "EXISTS", "{"+key(t)+"}:"+dead.owner+":rwlock_timeout:1", "{"+key(t)+"}:"+dead.owner+":rwlock_timeout:2") == "0"
	})
	unlock(t, r)
	require.Equal(t, "0", <-heard)
	require.Equal(t, "0", server.Do(t, "EXISTS", key(t)))
}

func pttl(t testing.TB, name string) time.Duration {
	t.Helper()
	n, err := strconv.Atoi(server.Do(t, "PTTL", name))
	require.NoError(t, err)
	return time.Duration(n) * time.Millisecond
}

// A short lease neither ends nor stretches a long one.
func TestScenario_RW01_aShortReaderBesideALongOne(t *testing.T) {
	t.Parallel()
	long := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 1200 * time.Millisecond, Fixed: true})
	short := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 300 * time.Millisecond, Fixed: true})
	began := time.Now()
	_, r1 := lock(t, long.Reader())
	_, _ = lock(t, short.Reader()) // never unlocks
	_, w := lock(t, newLock(t, session(t, redisAddr), key(t)).Writer())
	require.GreaterOrEqual(t, time.Since(began), 1150*time.Millisecond)
	require.Less(t, time.Since(began), 10*time.Second)
	require.ErrorIs(t, r1.Unlock(context.Background()), holdfast.ErrLost)
	unlock(t, w)
}

// The end of a short lease beside a long one does not free the lock.
func TestScenario_aShortLeaseDoesNotCutALongOne(t *testing.T) {
	hf := session(t, redisAddr)
	r1l := newLock(t, hf, key(t), holdfast.Options{Lease: 3 * time.Second, Fixed: true})
	short := threadOf(t, 2)
	_, r1 := lock(t, r1l.Reader())
	require.Empty(t, short.read(t, 300*time.Millisecond)) // and crashes
	time.Sleep(600 * time.Millisecond)
	w := newLock(t, session(t, redisAddr), key(t))
	taken(t, w.Writer())
	require.True(t, r1.Valid())
	unlock(t, r1)
	free(t, w.Writer())
}

// A reader's unlock does not leave the lock taken by its own TTL.
func TestScenario_RW08_aTenMinuteLeaseThatIsUnlockedDelaysNobody(t *testing.T) {
	long := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 10 * time.Minute, Fixed: true})
	dies := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 600 * time.Millisecond, Fixed: true})
	_, r := lock(t, long.Reader())
	_, _ = lock(t, dies.Reader())
	began := time.Now()
	done := make(chan error, 1)
	go func() {
		done <- newLock(t, session(t, redisAddr), key(t)).Writer().Do(within(t, 20*time.Second), func(context.Context) error { return nil })
	}()
	announced(t)
	unlock(t, r)
	require.NoError(t, <-done)
	require.Less(t, time.Since(began), 10*time.Second)
	free(t, long.Writer())
}

// All readers that wait enter at once, and stay together.
func TestScenario_RW11_twentyReadersEnterTogether(t *testing.T) {
	var sessions []*holdfast.Session
	var locks []*rwlock.Lock
	for range 4 {
		sessions = append(sessions, session(t, redisAddr))
		locks = append(locks, newLock(t, sessions[len(sessions)-1], key(t)))
	}
	_, w := lock(t, newLock(t, session(t, redisAddr), key(t)).Writer())
	var inside, most atomic.Int64
	var wg sync.WaitGroup
	together := make(chan struct{})
	for i := range 20 {
		wg.Go(func() {
			_ = locks[i%4].Reader().Do(within(t, 20*time.Second), func(context.Context) error {
				if n := inside.Add(1); n == 20 {
					most.Store(n)
					close(together)
				}
				select {
				case <-together:
				case <-time.After(5 * time.Second):
				}
				return nil
			})
		})
	}
	for _, s := range sessions {
		waiting(t, s, 5)
	}
	unlock(t, w)
	wg.Wait()
	require.EqualValues(t, 20, most.Load())
}

// Every reader's lease is renewed, in every process, and nobody writes meanwhile.
func TestScenario_RW03_twentyReadersAreRenewed(t *testing.T) {
	t.Parallel()
	var all []*holdfast.Lease
	for range 3 {
		l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 1500 * time.Millisecond})
		for range 7 {
			_, r := lock(t, l.Reader())
			all = append(all, r)
		}
	}
	w := newLock(t, session(t, redisAddr), key(t))
	for until := time.Now().Add(2500 * time.Millisecond); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		taken(t, w.Writer())
	}
	for _, r := range all {
		require.True(t, r.Valid())
		unlock(t, r)
	}
	free(t, w.Writer())
}

// One owner writes and reads, then reads on: the lock is kept alive throughout, also
// after a read beside a write was unlocked.
func TestScenario_RW16_X06_writingAndReadingAreRenewedThroughout(t *testing.T) {
	t.Parallel()
	const lease = 1500 * time.Millisecond
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: lease})
	ctx, w := lock(t, l.Writer())
	watch := func(what string) {
		t.Helper()
		for range 16 { // more than a lease
			time.Sleep(100 * time.Millisecond)
			require.Greater(t, pttl(t, key(t)), lease/4, what)
		}
	}
	_, r, err := l.Reader().Lock(ctx)
	require.NoError(t, err)
	watch("both")
	unlock(t, r)
	watch("a read was unlocked")
	_, r, err = l.Writer().Downgrade(ctx, w)
	require.NoError(t, err)
	watch("it reads")
	require.True(t, r.Valid())
	unlock(t, r)
	require.Equal(t, "0", server.Do(t, "EXISTS", key(t)))
}

// What a writer that has read under its lock leaves.
func TestScenario_RW06_RW10_writeReadReadUnlockWriteUnlock(t *testing.T) {
	l, other := newLock(t, session(t, redisAddr), key(t)), newLock(t, session(t, redisAddr), key(t))
	mode := func() string {
		info, err := other.Writer().Info(context.Background())
		require.NoError(t, err)
		return info.Mode
	}
	ctx, w := lock(t, l.Writer())
	require.Equal(t, "write", mode())
	_, r, err := l.Reader().Lock(ctx)
	require.NoError(t, err)
	require.Equal(t, "write", mode())
	taken(t, other.Reader())
	unlock(t, r)
	require.Equal(t, "write", mode())
	unlock(t, w)
	require.Equal(t, "free", mode())
}

// What a stranger sees of a writer that holds twice, takes a read, and gives all but
// that back.
func TestScenario_RW13_aWriterThatKeepsItsRead(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	one, two := newLock(t, session(t, redisAddr), key(t)), newLock(t, session(t, redisAddr), key(t))
	ctx, w1 := lock(t, l.Writer())
	_, w2, err := l.Writer().Lock(ctx)
	require.NoError(t, err)
	require.Nil(t, one.Writer().Held(context.Background()))
	taken(t, one.Reader())
	taken(t, two.Reader())
	unlock(t, w2)
	require.NotNil(t, l.Writer().Held(ctx))
	_, r, err := l.Reader().Lock(ctx)
	require.NoError(t, err)
	unlock(t, w1)
	free(t, one.Reader())
	free(t, two.Reader())
	taken(t, l.Writer())
	info, err := l.Writer().Info(context.Background())
	require.NoError(t, err)
	require.Equal(t, "read", info.Mode)
	require.Nil(t, l.Writer().Held(ctx))
	unlock(t, r)
}

// A hold that is nested in a fixed lease does not lengthen it.
func TestScenario_RW09_aNestedReadEndsWithItsRoot(t *testing.T) {
	t.Parallel()
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 1500 * time.Millisecond, Fixed: true})
	ctx, r := lock(t, l.Reader())
	began := time.Now()
	time.Sleep(500 * time.Millisecond)
	_, nested, err := l.Reader().Lock(ctx)
	require.NoError(t, err)
	unlock(t, nested)
	time.Sleep(time.Until(began.Add(1550 * time.Millisecond)))
	free(t, newLock(t, session(t, redisAddr), key(t)).Writer())
	require.ErrorIs(t, r.Unlock(ctx), holdfast.ErrLost)
}

// Nested holds of a writer do not add their leases up.
func TestScenario_RW05_aNestedWriteAddsNoTime(t *testing.T) {
	t.Parallel()
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 1500 * time.Millisecond, Fixed: true})
	ctx, _ := lock(t, l.Writer())
	_, _, err := l.Writer().TryLock(ctx)
	require.NoError(t, err)
	other := newLock(t, session(t, redisAddr), key(t))
	taken(t, other.Writer())
	require.LessOrEqual(t, pttl(t, key(t)), 1500*time.Millisecond)
	began := time.Now()
	_, w := lock(t, other.Writer())
	require.Less(t, time.Since(began), 2600*time.Millisecond)
	unlock(t, w)
}

// A writer that never unlocks: readers wait for the end of its lease.
func TestScenario_RW07_readersWaitForALeaseThatRunsOut(t *testing.T) {
	began := time.Now()
	_, _ = lock(t, newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 700 * time.Millisecond, Fixed: true}).Writer())
	var wg sync.WaitGroup
	for range 2 {
		l := newLock(t, session(t, redisAddr), key(t))
		wg.Go(func() {
			if err := l.Reader().Do(within(t, 20*time.Second), func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.GreaterOrEqual(t, time.Since(began), 690*time.Millisecond)
	require.Less(t, time.Since(began), 4*time.Second)
}

// The next gets in when a lease has run out, and the late unlock says so.
func TestScenario_RW17_RW18_aLeaseThatRunsOutLetsTheNextIn(t *testing.T) {
	for _, side := range []string{"read", "write"} {
		t.Run(side, func(t *testing.T) {
			of := func(l *rwlock.Lock) holdfast.Locker {
				if side == "read" {
					return l.Reader()
				}
				return l.Writer()
			}
			began := time.Now()
			_, late := lock(t, of(newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 500 * time.Millisecond, Fixed: true})))
			_, w := lock(t, newLock(t, session(t, redisAddr), key(t)).Writer())
			require.Less(t, time.Since(began), 4*time.Second)
			require.ErrorIs(t, late.Unlock(context.Background()), holdfast.ErrLost)
			require.True(t, w.Valid())
			unlock(t, w)
		})
	}
}

// Locking again and again with many workers and few names, with a tag in the name.
func TestScenario_RW04_manyWorkersOnOneHandle(t *testing.T) {
	l := newLock(t, session(t, redisAddr), "{"+key(t)+"}:abc:key")
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 10 {
				if err := l.Reader().Do(within(t, 20*time.Second), func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Empty(t, server.Keys(t, "*"+key(t)+"*"))
}

// Tasks on random sides, with counts that writers alone change.
func TestScenario_RW24_countsWithARandomSideEachTime(t *testing.T) {
	for _, c := range []struct{ sessions, rounds int }{{1, 15}, {16, 100}, {100, 1}} {
		t.Run(fmt.Sprint(c.sessions), func(t *testing.T) {
			var wg sync.WaitGroup
			count, want := 0, atomic.Int64{}
			client := connect(t, redisAddr)
			for range c.sessions {
				hf := sessionOn(t, client)
				wg.Go(func() {
					for range c.rounds {
						l, err := rwlock.New(hf, key(t), rwlock.Options{})
						if err == nil && rand.IntN(2) == 0 {
							want.Add(1)
							err = l.Writer().Do(within(t, 60*time.Second), func(context.Context) error { count++; return nil })
						} else if err == nil {
							err = l.Reader().Do(within(t, 60*time.Second), func(context.Context) error { _ = count; return nil })
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			require.EqualValues(t, want.Load(), count)
		})
	}
}

// A process that dies leaves its hold, and the renewal of another process' readers does
// not keep it alive.
func TestScenario_RW25_renewalKeepsNoOtherProcessAlive(t *testing.T) {
	t.Parallel()
	l := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: 1500 * time.Millisecond})
	_, r := lock(t, l.Reader())
	dead := threadOf(t, 9)
	require.Empty(t, dead.read(t, 400*time.Millisecond))
	time.Sleep(1800 * time.Millisecond) // renewed a few times
	require.NotEmpty(t, dead.holds(t), "its field is still there")
	unlock(t, r)
	free(t, l.Writer())
}

// Twenty processes died with three holds each, and one that lives leaves.
func TestScenario_RW26_manyDeadJavaReaders(t *testing.T) {
	for i := range 20 {
		for range 3 {
			require.Empty(t, threadOf(t, 100+i).read(t, 300*time.Millisecond))
		}
	}
	_, r := lock(t, newLock(t, session(t, redisAddr), key(t)).Reader())
	time.Sleep(350 * time.Millisecond)
	began := time.Now()
	unlock(t, r)
	_, w := lock(t, newLock(t, session(t, redisAddr), key(t)).Writer())
	require.Less(t, time.Since(began), 10*time.Second)
	unlock(t, w)
}

// A session that is closed releases what its holders held.
func TestScenario_RW19_aClosedSessionLeavesTheLockFree(t *testing.T) {
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t))
	ctx, _ := lock(t, l.Writer())
	over, cancel := context.WithCancel(context.Background())
	cancel()
	require.Error(t, hf.Close(over))
	require.ErrorIs(t, context.Cause(ctx), holdfast.ErrLost)
	free(t, newLock(t, session(t, redisAddr), key(t)).Writer())
}

// Redis restarts without its data: the unlock says so, and later holds are renewed.
func TestScenario_WD01_WD02_aRestartThatLosesTheDataIsTold(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t)
	l := newLock(t, session(t, srv.Addr()), key(t), holdfast.Options{Lease: 1500 * time.Millisecond})
	for _, side := range []holdfast.Locker{l.Reader(), l.Writer()} {
		ctx, lease := lock(t, side)
		require.NoError(t, srv.Restart())
		<-ctx.Done()
		require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)
		for range 2 {
			held, again := lock(t, side)
			time.Sleep(1700 * time.Millisecond) // more than a lease
			require.NoError(t, held.Err())
			unlock(t, again)
		}
	}
}

// Readers of another lock are not concerned.
func TestScenario_RW23_locksOfOtherNamesAreOthers(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	_, r := lock(t, l.For("a").Reader())
	_, r2 := lock(t, l.For("b").Reader())
	unlock(t, r2)
	free(t, l.For("b").Writer())
	taken(t, l.For("a").Writer())
	unlock(t, r)
	require.True(t, strings.HasSuffix(l.For("a").Name(), ":a"))
}

// A writer among eight overlapping readers that never pause.
func TestScenario_aWriterDoesNotStarve(t *testing.T) {
	l, w := newLock(t, session(t, redisAddr), key(t)), newLock(t, session(t, redisAddr), key(t))
	stop, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range 8 {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 7 * time.Millisecond)
			for stop.Err() == nil {
				_ = l.Reader().Do(stop, func(context.Context) error { time.Sleep(50 * time.Millisecond); return nil })
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	began := time.Now()
	_, lease, err := w.Writer().Lock(within(t, 20*time.Second))
	require.NoError(t, err)
	require.Less(t, time.Since(began), 5*time.Second)
	unlock(t, lease)

	// One that gives up, or dies, does not keep readers out.
	given, cancelled := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancelled()
	_, _, _ = w.Writer().Lock(given)
	began = time.Now()
	_, r := lock(t, w.Reader())
	require.Less(t, time.Since(began), 2500*time.Millisecond, "less than what a writer's word is good for")
	unlock(t, r)
}
