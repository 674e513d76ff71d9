package interop_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

func TestReadersOfBoth_shareAndKeepWritersOut(t *testing.T) {
	everywhere(t, func(t *testing.T, j *jvm, p place) {
		name := key(t)
		javas := []*owner{p.open(t, j).thread("1"), p.open(t, j).thread("1")}
		gos := []golock{newReader(p.session(t), name, holdfast.Options{}), newReader(p.session(t), name, holdfast.Options{})}
		goWriter, javaWriter := newWriter(p.session(t), name, holdfast.Options{}), p.open(t, j).thread("1")

		require.Equal(t, "true", javas[0].do(t, "try", reader, name))
		ctx0, lease0 := take(t, gos[0])
		require.Equal(t, "true", javas[1].do(t, "try", reader, name))
		ctx1, lease1 := take(t, gos[1])
		_, nested, err := gos[1].Lock(ctx1)
		require.NoError(t, err)

		info, err := goWriter.Info(context.Background())
		require.NoError(t, err)
		require.Equal(t, "read", info.Mode)
		require.Len(t, info.Holders, 4)
		hash := javas[0].do(t, "hash", reader, name)
		require.Contains(t, hash, "mode=read")
		require.Contains(t, hash, lease0.Owner()+"=1")
		require.Contains(t, hash, lease1.Owner()+"=1")
		out := func() {
			t.Helper()
			refused(t, goWriter)
			require.Equal(t, "false", javaWriter.do(t, "try", writer, name))
			require.Equal(t, "true", javaWriter.do(t, "isLocked", reader, name))
			require.Equal(t, "false", javaWriter.do(t, "isLocked", writer, name))
		}
		out()
		// Who leaves takes nobody else's hold along: not one of another Java process, and not
		// one of Go.
		javas[0].do(t, "unlock", reader, name)
		out()
		require.NoError(t, lease0.Unlock(ctx0))
		out()
		javas[1].do(t, "unlock", reader, name)
		out()
		require.Greater(t, p.ttl(t, name), 20*time.Second, "Java's unlock leaves Go's lease as long as it is")
		require.NoError(t, nested.Unlock(ctx1))
		out()
		require.NoError(t, ctx1.Err())
		require.NoError(t, lease1.Unlock(ctx1))
		require.Equal(t, "true", javaWriter.do(t, "try", writer, name))
		javaWriter.do(t, "unlock", writer, name)
		ctx, lease := take(t, goWriter)
		require.NoError(t, lease.Unlock(ctx))
		require.Empty(t, p.keys(t, name), "nothing is left")
		require.Empty(t, p.keys(t, "*"+name+"*:rwlock_timeout:*"))
	})
}

func TestReadersAndWriters_ofBothWakeEachOther(t *testing.T) {
	const rounds = 10
	pairs := []struct {
		name         string
		held, wanted kind
	}{{"w to r", writer, reader}, {"r to w", reader, writer}}
	everywhere(t, func(t *testing.T, j *jvm, p place) {
		for _, pair := range pairs {
			java := p.open(t, j).thread("1")
			hf := p.session(t)
			toGo, toJava := figure{j.version, p.name, pair.name, javaToGo}, figure{j.version, p.name, pair.name, goToJava}
			name := key(t) + ":java:" + pair.held.name
			for range rounds {
				java.do(t, "lock", pair.held, name)
				waiter := waitFor(t, pair.wanted.lock(hf, name, holdfast.Options{}))
				redistest.Eventually(t, patience, "Go waits", func() bool { return hf.Stats().Waiting == 1 })
				p.listening(t, pair.wanted, name, 1)
				waits(t, waiter, "Java has it")
				a := wait(t, java.start("unlock", pair.held, name))
				require.NoError(t, a.err)
				g := granted(t, waiter)
				require.NoError(t, g.lease.Unlock(g.ctx))
				toGo.add(g.at.Sub(a.began))
			}
			name = key(t) + ":go:" + pair.held.name
			for range rounds {
				ctx, lease := take(t, pair.held.lock(hf, name, holdfast.Options{}))
				call := java.start("lock", pair.wanted, name)
				p.listening(t, pair.wanted, name, 1)
				blocked(t, call, "Go has it")
				unlocked := time.Now()
				require.NoError(t, lease.Unlock(ctx))
				a := wait(t, call)
				require.NoError(t, a.err)
				toJava.add(a.ended.Sub(unlocked))
				java.do(t, "unlock", pair.wanted, name)
				p.listening(t, pair.wanted, name, 0)
			}
			toGo.prompt(t)
			toJava.prompt(t)
		}
	})
}

// A writer's release lets all readers in that wait, of all processes.
func TestWriter_ofEitherSideLetsAllReadersIn(t *testing.T) {
	const each = 4
	everywhere(t, func(t *testing.T, j *jvm, p place) {
		for _, side := range []string{"java", "go"} {
			name := key(t) + ":" + side
			java := p.open(t, j, "watchdog=5000")
			unlock := func() { java.thread("writer").do(t, "unlock", writer, name) }
			if side == "java" {
				java.thread("writer").do(t, "lock", writer, name)
			} else {
				ctx, lease := take(t, newWriter(p.session(t), name, holdfast.Options{}))
				unlock = func() { require.NoError(t, lease.Unlock(ctx)) }
			}
			hf, other := p.session(t), p.open(t, j)
			var gos []<-chan grant
			var javas []<-chan answer
			for i := range each {
				gos = append(gos, waitFor(t, newReader(hf, name, holdfast.Options{})))
				javas = append(javas, other.thread(string(rune('a'+i))).start("lock", reader, name))
			}
			redistest.Eventually(t, patience, "Go waits", func() bool { return hf.Stats().Waiting == each })
			p.listening(t, reader, name, 2)
			time.Sleep(50 * time.Millisecond) // the other threads share the subscription
			unlocked := time.Now()
			unlock()
			late := 0
			for i := range each { // all are inside before the first one leaves
				a := wait(t, javas[i])
				require.NoError(t, a.err)
				if a.ended.Sub(unlocked) > writerLease/2 {
					late++
				}
			}
			require.LessOrEqual(t, late, 1, "one may have missed it")
			for i := range each {
				g := granted(t, gos[i])
				defer func() { require.NoError(t, g.lease.Unlock(g.ctx)) }()
				other.thread(string(rune('a'+i))).do(t, "unlock", reader, name)
			}
		}
	})
}

func TestDowngrade_ofGoLetsJavaReadersInAtOnce(t *testing.T) {
	const rounds = 5
	everywhere(t, func(t *testing.T, j *jvm, p place) {
		name := key(t)
		rw := newReadWrite(p.session(t), name, holdfast.Options{Lease: writerLease})
		java := p.open(t, j)
		woken := figure{j.version, p.name, "downgrade", goToJava}
		for range rounds {
			ctx, lease := take(t, rw.Writer())
			call := java.thread("reader").start("lock", reader, name)
			p.listening(t, reader, name, 1)
			blocked(t, call, "Go writes")
			began := time.Now()
			ctx, reading, err := rw.Writer().Downgrade(ctx, lease)
			require.NoError(t, err)
			a := wait(t, call)
			require.NoError(t, a.err)
			woken.add(a.ended.Sub(began))
			require.Equal(t, "false", java.thread("writer").do(t, "try", writer, name))
			java.thread("reader").do(t, "unlock", reader, name)
			require.NoError(t, ctx.Err(), "Java's unlock left Go's read alone")
			require.NoError(t, reading.Unlock(ctx))
			require.Equal(t, "true", java.thread("writer").do(t, "try", writer, name))
			java.thread("writer").do(t, "unlock", writer, name)
			p.listening(t, reader, name, 0)
		}
		woken.prompt(t)
	})
}

// Redisson sends no message when a writer goes on as a reader: Go's readers come in
// when the time to live that they know of has run out, as Java's do.
func TestDowngrade_ofJavaLetsGoReadersInWithinALease(t *testing.T) {
	together(t, func(t *testing.T, j *jvm, p place) {
		name := key(t)
		java := p.open(t, j, "watchdog=1500").thread("1")
		java.do(t, "lock", writer, name)
		hf := p.session(t)
		waiter := waitFor(t, newReader(hf, name, holdfast.Options{}))
		p.listening(t, reader, name, 1)
		waits(t, waiter, "Java writes")
		java.do(t, "lock", reader, name)
		waits(t, waiter, "Java still writes")
		refusedReader(t, p, name)
		a := wait(t, java.start("unlock", writer, name))
		require.NoError(t, a.err)
		g := granted(t, waiter)
		require.Less(t, g.at.Sub(a.ended), killLease+5*time.Second)
		refused(t, newWriter(p.session(t), name, holdfast.Options{}))
		java.do(t, "unlock", reader, name)
		require.NoError(t, g.ctx.Err())
		require.NoError(t, g.lease.Unlock(g.ctx))
	})
}

func refusedReader(t testing.TB, p place, name string) {
	t.Helper()
	refused(t, newReader(p.session(t), name, holdfast.Options{}))
}

func TestReadersOfBoth_areRenewed(t *testing.T) {
	together(t, func(t *testing.T, j *jvm, p place) {
		name := key(t)
		java := p.open(t, j, "watchdog=1500").thread("1")
		java.do(t, "lock", reader, name)
		ctx, lease := take(t, newReader(p.session(t), name, holdfast.Options{Lease: killLease}))
		// Its lease bounds what Java may miss; see TestRedisson_missesAWritersRelease.
		goWriter := waitFor(t, newWriter(p.session(t), name, holdfast.Options{Lease: killLease}))
		other := p.open(t, j).thread("1")
		call := other.start("lock", writer, name)
		for began := time.Now(); time.Since(began) < 3*killLease; time.Sleep(20 * time.Millisecond) {
			require.Positive(t, p.ttl(t, name))
			waits(t, goWriter, "both read")
			blocked(t, call, "both read")
		}
		require.NoError(t, ctx.Err())
		require.NoError(t, lease.Unlock(ctx))
		for began := time.Now(); time.Since(began) < 2*killLease; time.Sleep(20 * time.Millisecond) {
			waits(t, goWriter, "Java reads")
			blocked(t, call, "Java reads")
		}
		java.do(t, "unlock", reader, name)
		// One of the two gets it, then the other.
		select {
		case g := <-goWriter:
			require.NoError(t, g.err)
			blocked(t, call, "Go writes")
			require.NoError(t, g.lease.Unlock(g.ctx))
			require.NoError(t, wait(t, call).err)
			other.do(t, "unlock", writer, name)
		case a := <-call:
			require.NoError(t, a.err)
			waits(t, goWriter, "Java writes")
			other.do(t, "unlock", writer, name)
			g := granted(t, goWriter)
			require.NoError(t, g.lease.Unlock(g.ctx))
		case <-time.After(patience):
			require.Fail(t, "no writer gets in")
		}
	})
}

// A Go reader that was killed holds writers up for its lease, beside a Java reader
// that lives.
func TestDeadReaders_ofGoBesideALiveOneOfJava(t *testing.T) {
	together(t, func(t *testing.T, j *jvm, p place) {
		name := key(t)
		java := p.open(t, j, "watchdog=1500").thread("1")
		java.do(t, "lock", reader, name)
		var addrs []string
		for _, s := range p.servers {
			addrs = append(addrs, s.Addr())
		}
		victim := redistest.Child(t, "reader", "NAME="+name, "ADDRS="+strings.Join(addrs, ","), "PLACE="+p.name)
		victim.Line("held", patience)
		goWriter := waitFor(t, newWriter(p.session(t), name, holdfast.Options{}))
		p.listening(t, writer, name, 1)
		victim.Kill()
		killed := time.Now()
		time.Sleep(2 * killLease) // Java's watchdog runs all the time
		waits(t, goWriter, "Java reads")
		alive := 0
		for _, hold := range p.keys(t, "*:rwlock_timeout:*") {
			if strings.Contains(hold, name) {
				alive++
			}
		}
		a := wait(t, java.start("unlock", reader, name))
		require.NoError(t, a.err)
		g := granted(t, goWriter)
		t.Logf("%d holds were alive %v after the kill; the writer came %v after the last reader", alive, a.began.Sub(killed), g.at.Sub(a.began))
		bound := time.Second
		if j.renewsOthersReads() {
			require.Equal(t, 2, alive, "Java's watchdog keeps the dead Go reader alive too, for as long as its own reads")
			bound += killLease
		} else {
			require.Equal(t, 1, alive, "Java's watchdog leaves the dead Go reader alone")
		}
		require.Less(t, g.at.Sub(a.began), bound)
		require.NoError(t, g.lease.Unlock(g.ctx))
	})
}

// And Java readers that were killed, one with a nested hold, beside a Go reader that
// lives: Go takes them out when it leaves, so nobody waits for them.
func TestDeadReaders_ofJavaBesideALiveOneOfGo(t *testing.T) {
	together(t, func(t *testing.T, j *jvm, p place) {
		victim := startJVM(t, j.jar)
		dead := p.open(t, victim, "watchdog=1500")
		gos, javas := key(t)+":go", key(t)+":java" // whose writer waits
		var alive []grant
		for _, name := range []string{gos, javas} {
			dead.thread("1").do(t, "lock", reader, name)
			dead.thread("1").do(t, "lock", reader, name)
			dead.thread("2").do(t, "lock", reader, name)
			ctx, lease := take(t, newReader(p.session(t), name, holdfast.Options{Lease: killLease}))
			alive = append(alive, grant{ctx: ctx, lease: lease})
		}
		goWriter := waitFor(t, newWriter(p.session(t), gos, holdfast.Options{}))
		java := p.open(t, j).thread("1")
		javaWriter := java.start("lock", writer, javas)
		p.listening(t, writer, gos, 1)
		p.listening(t, writer, javas, 1)
		victim.kill()
		time.Sleep(2 * killLease)
		waits(t, goWriter, "Go reads")
		blocked(t, javaWriter, "Go reads")

		unlocked := time.Now()
		for _, g := range alive {
			require.NoError(t, g.ctx.Err(), "Go reads on")
			require.NoError(t, g.lease.Unlock(g.ctx))
		}
		g := granted(t, goWriter)
		a := wait(t, javaWriter)
		require.NoError(t, a.err)
		t.Logf("after the last live reader Go's writer came in %v, Java's in %v", g.at.Sub(unlocked), a.ended.Sub(unlocked))
		require.Less(t, g.at.Sub(unlocked), time.Second)
		require.Less(t, a.ended.Sub(unlocked), time.Second)
		require.NoError(t, g.lease.Unlock(g.ctx))
		java.do(t, "unlock", writer, javas)
	})
}

func init() { roles["reader"] = readingHolder } //nolint:gochecknoinits // beside what it is about

// readingHolder is a Go process that reads until it is killed.
func readingHolder() {
	hf := holderSession()
	_, _, err := newReader(hf, os.Getenv("NAME"), holdfast.Options{Lease: killLease}).Lock(context.Background())
	check(err)
	redistest.Say("held")
	<-redistest.Listen()
}

func TestReaders_areForcedOutByEitherSide(t *testing.T) {
	everywhere(t, func(t *testing.T, j *jvm, p place) {
		name := key(t)
		java := p.open(t, j).thread("1")
		l := newReader(p.session(t), name, holdfast.Options{Lease: killLease})
		ctx, lease := take(t, l)
		require.Equal(t, "false", java.do(t, "forceUnlock", writer, name), "each acts in its own mode")
		require.Equal(t, "true", java.do(t, "forceUnlock", reader, name))
		ended(t, ctx)
		require.ErrorIs(t, unlocking(lease), holdfast.ErrLost)

		java.do(t, "lock", reader, name)
		was, err := newWriter(p.session(t), name, holdfast.Options{}).ForceUnlock(context.Background())
		require.NoError(t, err)
		require.False(t, was)
		was, err = l.ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, was)
		late := wait(t, java.start("unlock", reader, name))
		require.Equal(t, j.since(3, 44), late.err != nil, "which older versions do not notice: %v", late.err)
		ctx, lease = take(t, newWriter(p.session(t), name, holdfast.Options{}))
		require.NoError(t, lease.Unlock(ctx))
	})
}

func TestReaders_meanTheSameByAName(t *testing.T) {
	everywhere(t, func(t *testing.T, j *jvm, p place) {
		java := p.open(t, j).thread("1")
		hf := p.session(t)
		for _, name := range []string{"{rw}:order", "rw:{tag}:7", "rw-käse-🔒", "rw:plain"} {
			java.do(t, "lock", reader, name)
			ctx, lease := take(t, newReader(hf, name, holdfast.Options{}))
			refused(t, newWriter(hf, name, holdfast.Options{}))
			hold := name + ":" + lease.Owner() + ":rwlock_timeout:1"
			if !strings.Contains(name, "{") {
				hold = "{" + name + "}" + strings.TrimPrefix(hold, name)
			}
			require.Equal(t, "1", p.do(t, name, "EXISTS", hold))
			java.do(t, "unlock", reader, name)
			require.NoError(t, ctx.Err())
			require.Equal(t, "false", java.do(t, "try", writer, name))
			require.NoError(t, lease.Unlock(ctx))
			require.Equal(t, "true", java.do(t, "try", writer, name))
			java.do(t, "unlock", writer, name)
		}
	})
}
