package interop_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

func TestJavaAndGo_excludeEachOther(t *testing.T) {
	eachKind(t, func(t *testing.T, j *jvm, p place, k kind) {
		name := key(t)
		java := p.open(t, j).thread("1")
		l := k.lock(p.session(t), name, holdfast.Options{})

		require.Equal(t, "true", java.do(t, "try", k, name))
		refused(t, l)
		info, err := l.Info(context.Background())
		require.NoError(t, err)
		require.Len(t, info.Holders, 1)
		require.Contains(t, info.Holders[0].Owner, java.client.id, "Go sees who holds it")
		require.Positive(t, info.TTL)
		java.do(t, "unlock", k, name)

		ctx, lease := take(t, l)
		require.Equal(t, "false", java.do(t, "try", k, name))
		require.Equal(t, "false", java.do(t, "try", k, name, 50), "nor within a wait")
		require.Equal(t, "true", java.do(t, "isLocked", k, name))
		require.Equal(t, "false", java.do(t, "isHeld", k, name))
		require.Contains(t, java.do(t, "hash", k, name), k.owner(lease.Owner())+"=1", "Java sees who holds it")
		require.Equal(t, notMine, java.fails(t, "unlock", k, name))
		require.NoError(t, ctx.Err(), "which changed nothing")
		refused(t, k.lock(p.session(t), name, holdfast.Options{}))
		require.NoError(t, lease.Unlock(ctx))

		require.Equal(t, "true", java.do(t, "try", k, name))
		java.do(t, "unlock", k, name)
		require.Equal(t, "0", p.do(t, name, "EXISTS", name), "nothing is left")
	})
}

func TestJavaAndGo_wakeEachOther(t *testing.T) {
	const rounds = 20
	eachKind(t, func(t *testing.T, j *jvm, p place, k kind) {
		java := p.open(t, j).thread("1")
		hf := p.session(t)
		l := k.lock(hf, key(t)+":java", holdfast.Options{})
		toGo, toJava := figure{j.version, p.name, k.name, javaToGo}, figure{j.version, p.name, k.name, goToJava}
		for range rounds {
			name := key(t) + ":java"
			java.do(t, "lock", k, name)
			waiter := waitFor(t, l)
			redistest.Eventually(t, patience, "Go waits", func() bool { return hf.Stats().Waiting == 1 })
			p.listening(t, k, name, 1)
			waits(t, waiter, "Java has it")
			unlock := wait(t, java.start("unlock", k, name))
			require.NoError(t, unlock.err)
			g := granted(t, waiter)
			require.NoError(t, g.lease.Unlock(g.ctx))
			toGo.add(g.at.Sub(unlock.began))
		}
		l = k.lock(hf, key(t)+":go", holdfast.Options{}) // its session never listens to this one
		for range rounds {
			name := key(t) + ":go"
			ctx, lease := take(t, l)
			call := java.start("lock", k, name)
			p.listening(t, k, name, 1)
			blocked(t, call, "Go has it")
			unlocked := time.Now()
			require.NoError(t, lease.Unlock(ctx))
			a := wait(t, call)
			require.NoError(t, a.err)
			toJava.add(a.ended.Sub(unlocked))
			java.do(t, "unlock", k, name)
			p.listening(t, k, name, 0)
		}
		toGo.prompt(t)
		toJava.prompt(t)
	})
}

func TestJavaAndGo_readEachOthersHoldCounts(t *testing.T) {
	eachKind(t, func(t *testing.T, j *jvm, p place, k kind) {
		name := key(t)
		java := p.open(t, j).thread("1")
		l := k.lock(p.session(t), name, holdfast.Options{})
		holds := func() int {
			info, err := l.Info(context.Background())
			require.NoError(t, err)
			require.Len(t, info.Holders, 1)
			return info.Holders[0].Holds
		}
		for n := 1; n <= 3; n++ {
			java.do(t, "lock", k, name)
			require.Equal(t, n, holds())
			require.Equal(t, strconv.Itoa(n), java.do(t, "holds", k, name))
		}
		waiter := waitFor(t, l)
		p.listening(t, k, name, 1)
		for n := 2; n >= 1; n-- {
			java.do(t, "unlock", k, name)
			require.Equal(t, n, holds())
			waits(t, waiter, "Java has a hold left")
		}
		java.do(t, "unlock", k, name)
		g := granted(t, waiter)
		require.NoError(t, g.lease.Unlock(g.ctx))

		name += ":go"
		l = k.lock(p.session(t), name, holdfast.Options{})
		ctx, lease := take(t, l)
		owner, leases := k.owner(lease.Owner()), []*holdfast.Lease{lease}
		for range 2 {
			inner, lease, err := l.Lock(ctx)
			require.NoError(t, err)
			ctx, leases = inner, append(leases, lease)
		}
		require.Contains(t, java.do(t, "hash", k, name), owner+"=3")
		call := java.start("lock", k, name)
		p.listening(t, k, name, 1)
		for n := 2; n >= 1; n-- {
			require.NoError(t, leases[n].Unlock(ctx))
			require.Contains(t, p.do(t, name, "HGETALL", name), owner+" "+strconv.Itoa(n))
			blocked(t, call, "Go has a hold left")
		}
		require.NoError(t, leases[0].Unlock(ctx))
		get(t, call)
		java.do(t, "unlock", k, name)
	})
}

// Each side's watchdog renews by its own lease, and the other side stays out for as
// long as that goes on, and no longer.
func TestJavaAndGo_respectEachOthersWatchdog(t *testing.T) {
	const lease, work = 1500 * time.Millisecond, 4 * time.Second
	together(t, func(t *testing.T, j *jvm, p place) {
		javaHolder := p.open(t, j, "watchdog=1500").thread("1")
		javaWaiter := p.open(t, j)
		holder, waiter := p.session(t), p.session(t)
		var leases []grant
		var waiters []<-chan grant
		var calls []<-chan answer
		for _, k := range kinds {
			javas, gos := key(t)+":java:"+k.name, key(t)+":go:"+k.name
			javaHolder.do(t, "lock", k, javas)
			waiters = append(waiters, waitFor(t, k.lock(waiter, javas, holdfast.Options{})))
			p.listening(t, k, javas, 1)

			ctx, held := take(t, k.lock(holder, gos, holdfast.Options{Lease: lease}))
			leases = append(leases, grant{ctx: ctx, lease: held})
			calls = append(calls, javaWaiter.thread(k.name).start("lock", k, gos))
			p.listening(t, k, gos, 1)
		}
		for began := time.Now(); time.Since(began) < work; time.Sleep(20 * time.Millisecond) {
			for i, k := range kinds {
				for _, side := range []string{":java:", ":go:"} {
					left := p.ttl(t, key(t)+side+k.name)
					require.Positive(t, left, side)
					require.LessOrEqual(t, left, lease)
				}
				waits(t, waiters[i], "Java's watchdog keeps "+k.name)
				blocked(t, calls[i], "Go's watchdog keeps "+k.name)
			}
		}
		// A client that shuts down renews no more and unlocks nothing.
		down := time.Now()
		javaHolder.client.shutdown(t)
		for i, k := range kinds {
			g := granted(t, waiters[i])
			require.Less(t, g.at.Sub(down), lease+5*time.Second, "the lease, a slow shutdown, and slack")
			require.NoError(t, g.lease.Unlock(g.ctx))

			require.NoError(t, leases[i].ctx.Err())
			require.NoError(t, leases[i].lease.Unlock(leases[i].ctx))
			get(t, calls[i])
			javaWaiter.thread(k.name).do(t, "unlock", k, key(t)+":go:"+k.name)
		}
	})
}

func TestJavaAndGo_fixedLeasesRunOut(t *testing.T) {
	const lease = 600 * time.Millisecond
	together(t, func(t *testing.T, j *jvm, p place) {
		for _, k := range kinds {
			name := key(t) + ":" + k.name
			java := p.open(t, j).thread("1")
			l := k.lock(p.session(t), name, holdfast.Options{Lease: lease, Fixed: true})
			a := wait(t, java.start("lock", k, name, lease))
			require.NoError(t, a.err)
			g := granted(t, waitFor(t, l))
			require.GreaterOrEqual(t, g.at.Sub(a.began), lease)
			require.Less(t, g.at.Sub(a.ended), lease+5*time.Second)
			require.Equal(t, notMine, java.fails(t, "unlock", k, name), "Java learns of it at its unlock")

			call := java.start("lock", k, name)
			ended(t, g.ctx)
			blocked(t, call, "Go's context ends before Java can have it")
			a = wait(t, call)
			require.NoError(t, a.err)
			require.ErrorIs(t, context.Cause(g.ctx), holdfast.ErrLost)
			require.ErrorIs(t, g.lease.Unlock(g.ctx), holdfast.ErrLost)
			require.Equal(t, "true", java.do(t, "isHeld", k, name), "and Go's late unlock did not touch Java's hold")
			java.do(t, "unlock", k, name)
		}
	})
}

func TestJavaAndGo_forceEachOtherOut(t *testing.T) {
	eachKind(t, func(t *testing.T, j *jvm, p place, k kind) {
		name := key(t)
		java, other := p.open(t, j).thread("1"), p.open(t, j).thread("1")
		l := k.lock(p.session(t), name, holdfast.Options{})

		ctx, lease := take(t, l)
		call := java.start("lock", k, name)
		p.listening(t, k, name, 1)
		blocked(t, call, "Go has it")
		require.Equal(t, "true", other.do(t, "forceUnlock", k, name))
		get(t, call)
		// Nobody waits in this process, so it hears no message: its unlock tells it, or the next renewal.
		require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)
		require.Equal(t, "true", java.do(t, "isHeld", k, name), "Go's unlock did not touch Java's hold")

		waiter := waitFor(t, k.lock(p.session(t), name, holdfast.Options{}))
		p.listening(t, k, name, 1)
		was, err := l.ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, was)
		g := granted(t, waiter)
		require.Equal(t, notMine, java.fails(t, "unlock", k, name))
		require.NoError(t, g.ctx.Err())
		require.NoError(t, g.lease.Unlock(g.ctx))

		was, err = l.ForceUnlock(context.Background())
		require.NoError(t, err)
		require.False(t, was, "nobody has it")
		require.Equal(t, "false", other.do(t, "forceUnlock", k, name))
	})
}

// unlocking unlocks a lease with a context of its own.
func unlocking(lease *holdfast.Lease) error { return lease.Unlock(context.Background()) }

// A holder that Java forces out is told at its next renewal at the latest.
func TestGo_isToldThatJavaForcedItOut(t *testing.T) {
	together(t, func(t *testing.T, j *jvm, p place) {
		for _, k := range kinds {
			name := key(t) + ":" + k.name
			ctx, lease := take(t, k.lock(p.session(t), name, holdfast.Options{Lease: 1500 * time.Millisecond}))
			began := time.Now()
			require.Equal(t, "true", p.open(t, j).thread("1").do(t, "forceUnlock", k, name))
			ended(t, ctx)
			require.Less(t, time.Since(began), 1500*time.Millisecond, "before the lease would have ended")
			require.ErrorIs(t, context.Cause(ctx), holdfast.ErrLost)
			require.ErrorIs(t, unlocking(lease), holdfast.ErrLost)
		}
	})
}

func TestJavaAndGo_timedWaitsEndOnTime(t *testing.T) {
	const budget = 300 * time.Millisecond
	together(t, func(t *testing.T, j *jvm, p place) {
		for _, k := range kinds {
			name := key(t) + ":" + k.name
			java := p.open(t, j).thread("1")
			l := k.lock(p.session(t), name, holdfast.Options{Wait: budget})
			ctx, lease := take(t, l)
			a := wait(t, java.start("try", k, name, budget))
			require.NoError(t, a.err)
			require.Equal(t, "false", a.value)
			require.Greater(t, a.ended.Sub(a.began), budget*9/10)
			require.NoError(t, lease.Unlock(ctx))

			java.do(t, "lock", k, name)
			began := time.Now()
			_, _, err := l.Lock(context.Background())
			require.ErrorIs(t, err, holdfast.ErrNotAcquired)
			require.GreaterOrEqual(t, time.Since(began), budget)
			java.do(t, "unlock", k, name)
			redistest.Eventually(t, patience, "no listener is left but Go's, which lingers", func() bool {
				return p.listeners(t, k.channel(name)) <= 1
			})
		}
	})
}

// The token of every hold is greater than that of every hold before it, whichever
// side took it, and a nested hold of Java moves it too.
func TestJavaAndGo_tokensRiseAcrossBoth(t *testing.T) {
	everywhere(t, func(t *testing.T, j *jvm, p place) {
		name := key(t)
		counter := prefixed("redisson_lock_token", name)
		java := p.open(t, j).thread("1")
		l := fenced.lock(p.session(t), name, holdfast.Options{})
		number := func(text string) uint64 {
			n, err := strconv.ParseUint(text, 10, 64)
			require.NoError(t, err)
			return n
		}
		last := number(java.do(t, "lockAndGetToken", fenced, name))
		require.EqualValues(t, 1, last, "Java came first")
		java.do(t, "unlock", fenced, name)
		for range 3 {
			ctx, lease := take(t, l)
			require.Greater(t, lease.Token(), last)
			last = lease.Token()
			require.Equal(t, last, number(java.do(t, "token", fenced, name)), "Java reads Go's token")
			require.NoError(t, lease.Unlock(ctx))

			java.do(t, "lock", fenced, name)
			token := number(java.do(t, "token", fenced, name))
			require.Equal(t, last+1, token)
			nested := number(java.do(t, "lockAndGetToken", fenced, name))
			require.Equal(t, token+1, nested)
			last = nested
			java.do(t, "unlock", fenced, name)
			java.do(t, "unlock", fenced, name)
			require.Equal(t, "-1", p.do(t, counter, "PTTL", counter), "nobody gives the counter a TTL")
		}
		ctx, lease := take(t, l)
		require.Greater(t, lease.Token(), last)
		last = lease.Token()
		require.Equal(t, "true", java.do(t, "forceUnlock", fenced, name))
		require.ErrorIs(t, unlocking(lease), holdfast.ErrLost)
		require.Error(t, ctx.Err())
		require.Greater(t, number(java.do(t, "lockAndGetToken", fenced, name)), last, "also after it was forced")
		java.do(t, "unlock", fenced, name)
	})
}

// The first token of a counter that Go began is its clock; Java counts on from it.
func TestJava_countsOnFromGosFirstToken(t *testing.T) {
	everywhere(t, func(t *testing.T, j *jvm, p place) {
		name := key(t)
		ctx, lease := take(t, fenced.lock(p.session(t), name, holdfast.Options{}))
		require.NoError(t, lease.Unlock(ctx))
		require.Equal(t, strconv.FormatUint(lease.Token()+1, 10), p.open(t, j).thread("1").do(t, "lockAndGetToken", fenced, name))
	})
}

func TestJavaAndGo_meanTheSameByAName(t *testing.T) {
	names := []string{
		"{tag}:order", "order:{tag}:7", "a{b}c{d}", "with:colons", "with space", "käse-🔒", "x", "redisson_lock__channel:{x}",
	}
	eachKind(t, func(t *testing.T, j *jvm, p place, k kind) {
		java := p.open(t, j).thread("1")
		hf := p.session(t)
		for _, name := range names {
			both(t, p, k, java, hf, name, name)
		}
		// A name mapper that puts something before names is a session's prefix.
		java = p.open(t, j, "prefix=app:").thread("1")
		hf = p.session(t, holdfast.SessionOptions{Prefix: "app:"})
		for _, name := range []string{"order", "order:{tag}"} {
			both(t, p, k, java, hf, name, "app:"+name)
		}
	})
}

// both checks that Java and Go, each by that name, exclude and wake each other at
// the key full.
func both(t testing.TB, p place, k kind, java *owner, session *holdfast.Session, name, full string) {
	t.Helper()
	l := k.lock(session, name, holdfast.Options{})
	ctx, lease := take(t, l)
	call := java.start("lock", k, name)
	p.listening(t, k, full, 1)
	blocked(t, call, name)
	require.NoError(t, lease.Unlock(ctx))
	get(t, call)

	require.Equal(t, "hash", p.do(t, full, "TYPE", full), name)
	waiter := waitFor(t, l)
	redistest.Eventually(t, patience, "Go listens, and Java no longer", func() bool {
		return session.Stats().Waiting == 1 && p.listeners(t, k.channel(full)) == 1
	})
	waits(t, waiter, name)
	java.do(t, "unlock", k, name)
	g := granted(t, waiter)
	require.NoError(t, g.lease.Unlock(g.ctx))
	require.Equal(t, "0", p.do(t, full, "EXISTS", full))
}

// A Java thread that is interrupted while it waits leaves nothing behind.
func TestJava_thatIsInterruptedLeavesGoAlone(t *testing.T) {
	eachKind(t, func(t *testing.T, j *jvm, p place, k kind) {
		name := key(t)
		java := p.open(t, j).thread("1")
		l := k.lock(p.session(t), name, holdfast.Options{})
		ctx, lease := take(t, l)
		call := java.start("lockInterruptibly", k, name)
		p.listening(t, k, name, 1)
		require.True(t, java.interrupt(t))
		require.Error(t, wait(t, call).err)
		require.NoError(t, ctx.Err())
		require.NoError(t, lease.Unlock(ctx))
		ctx, lease = take(t, l)
		require.NoError(t, lease.Unlock(ctx))
		require.Equal(t, "0", p.do(t, name, "EXISTS", name))
	})
}
