package interop_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

// What goes wrong in Redisson, and what Go makes of it.

// wrong is its part of the report.
const wrong = "what goes wrong in Redisson"

// A thread that writes, reads and stops reading is no longer renewed as a writer, from
// 3.44 on: its lock runs out under it. Go gets in as by any lease that runs out.
func TestRedisson_stopsRenewingAWriterThatHasRead(t *testing.T) {
	together(t, func(t *testing.T, j *jvm, p place) {
		name := key(t)
		java := p.open(t, j, "watchdog=1500").thread("1")
		java.do(t, "lock", writer, name)
		java.do(t, "lock", reader, name)
		java.do(t, "unlock", reader, name)
		waiter := waitFor(t, newWriter(p.session(t), name, holdfast.Options{}))
		time.Sleep(3 * killLease)
		if !j.since(3, 44) {
			waits(t, waiter, "Java writes")
			java.do(t, "unlock", writer, name)
			g := granted(t, waiter)
			require.NoError(t, g.lease.Unlock(g.ctx))
			return
		}
		g := granted(t, waiter)
		require.Equal(t, notMine, java.fails(t, "unlock", writer, name), "Java has not noticed")
		require.NoError(t, g.ctx.Err())
		require.NoError(t, g.lease.Unlock(g.ctx))
	})
}

// A Java thread that has been refused and does not sleep yet misses the release of a
// writer: the message 1 wakes those that sleep, and is not remembered for others, as 0
// is. It looks again when the lease that it knows of has ended.
func TestRedisson_missesAWritersRelease(t *testing.T) {
	const rounds, lease = 100, time.Second
	for _, j := range jvms {
		p := single(server)
		t.Run("redisson="+j.version, func(t *testing.T) {
			name := key(t)
			java := p.open(t, j).thread("1")
			l := newReadWrite(p.session(t), name, holdfast.Options{Lease: lease, Handoff: -1})
			missed := 0
			for round := range rounds {
				ctx, lease := take(t, l.Reader())
				call := java.start("lock", writer, name)
				p.listening(t, writer, name, 1)
				// The reader's 0 makes Java ask, at about the time at which a writer of Go has it.
				next := make(chan error, 1)
				go func() {
					next <- l.Writer().Do(soon(t), func(context.Context) error {
						time.Sleep(time.Duration(round%10) * 50 * time.Microsecond)
						return nil
					})
				}()
				unlocked := time.Now()
				require.NoError(t, lease.Unlock(ctx))
				a := wait(t, call)
				require.NoError(t, a.err)
				if a.ended.Sub(unlocked) > 500*time.Millisecond {
					missed++
				}
				java.do(t, "unlock", writer, name)
				require.NoError(t, <-next)
			}
			note(wrong, "%s missed %d of %d releases of a writer, and looked when its lease ended", j.version, missed, rounds)
		})
	}
}

// The renewal of a Java reader sets the TTL of the lock to its own lease, also downwards:
// if it died then, a Go reader with a longer one would be left without a lock.
func TestRedisson_aReadersRenewalCutsALongerLease(t *testing.T) {
	eachVersion(t, func(t *testing.T, j *jvm, p place) {
		name := key(t)
		ctx, lease := take(t, newReader(p.session(t), name, holdfast.Options{Lease: time.Minute, Fixed: true}))
		java := p.open(t, j, "watchdog=1500").thread("1")
		java.do(t, "lock", reader, name)
		require.Greater(t, p.ttl(t, name), 30*time.Second, "not its acquire")
		redistest.Eventually(t, patience, "its renewal", func() bool { return p.ttl(t, name) <= killLease })
		java.do(t, "unlock", reader, name)
		if j.renewsOthersReads() {
			require.LessOrEqual(t, p.ttl(t, name), killLease, "it has cut Go's hold too")
		} else {
			require.Greater(t, p.ttl(t, name), 30*time.Second, "its unlock brings it back")
		}
		_ = lease.Unlock(ctx) // which may be lost by now
	})
}

// A Java thread that is interrupted in lockInterruptibly, at the moment at which it
// gets the lock, can leave it taken and renewed with nobody to unlock it. Only force,
// or the end of its process, helps the others.
func TestRedisson_anInterruptedWaiterCanLeaveTheLockTaken(t *testing.T) {
	const most = 100
	for _, j := range jvms {
		p := single(server)
		t.Run("redisson="+j.version, func(t *testing.T) {
			name := key(t)
			c := p.open(t, j, "watchdog=1500")
			holder, waiter := c.thread("holder"), c.thread("waiter")
			l := newReentrant(p.session(t), name, holdfast.Options{})
			for round := range most {
				holder.do(t, "lock", plain, name)
				call := waiter.start("lockInterruptibly", plain, name)
				p.listening(t, plain, name, 1)
				unlock := holder.start("unlock", plain, name)
				time.Sleep(time.Duration(round%20) * 50 * time.Microsecond)
				waiter.interrupt(t) // it may have the lock by now
				get(t, unlock)
				if wait(t, call).err == nil {
					waiter.do(t, "unlock", plain, name)
					continue
				}
				time.Sleep(5 * time.Millisecond)
				if p.do(t, name, "EXISTS", name) == "0" {
					continue
				}
				time.Sleep(2 * killLease)
				if p.do(t, name, "EXISTS", name) == "1" {
					note(wrong, "%s left a lock taken and renewed after %d interrupts of a waiter", j.version, round+1)
					was, err := l.ForceUnlock(context.Background())
					require.NoError(t, err)
					require.True(t, was)
					ctx, lease := take(t, l)
					require.NoError(t, lease.Unlock(ctx))
					return
				}
			}
			note(wrong, "%s left no lock taken after %d interrupts of a waiter", j.version, most)
		})
	}
}

// inACluster runs a test with each version of Redisson in the cluster with sharded
// channels.
func inACluster(t *testing.T, test func(t *testing.T, j *jvm, p place)) {
	t.Helper()
	for _, j := range jvms {
		t.Run("redisson="+j.version, func(t *testing.T) {
			t.Parallel() // with the other version
			test(t, j, places()[1])
		})
	}
}

// elsewhere is a primary that does not have the key's slot.
func elsewhere(p place, name string) *redistest.Server {
	for _, s := range p.servers[:3] {
		if s != p.cluster.Primary(name) {
			return s
		}
	}
	panic("one primary has all")
}

// A slot moves while Java holds a lock and Go waits for it: Go listens at the new node,
// and is woken.
func TestMovedSlot_goIsWoken(t *testing.T) {
	inACluster(t, func(t *testing.T, j *jvm, p place) {
		for _, k := range kinds {
			name := key(t) + ":" + k.name
			java := p.open(t, j).thread("1")
			java.do(t, "lock", k, name)
			waiter := waitFor(t, k.lock(p.session(t), name, holdfast.Options{}))
			p.listening(t, k, name, 1)
			p.cluster.MoveSlot(t, p.cluster.Slot(name), elsewhere(p, name))
			waits(t, waiter, "Java has it")
			p.listening(t, k, name, 1)
			a := wait(t, java.start("unlock", k, name))
			require.NoError(t, a.err)
			g := granted(t, waiter)
			require.Less(t, g.at.Sub(a.ended), 10*time.Second, "the lease has 30 s")
			require.NoError(t, g.lease.Unlock(g.ctx))
		}
	})
}

// A slot moves while Go holds a lock and Java waits for it: Redisson does not listen at
// the new node, and looks when the lease that it knows of has ended.
func TestMovedSlot_javaLooksAtTheEndOfTheLease(t *testing.T) {
	const lease = 4 * time.Second
	inACluster(t, func(t *testing.T, j *jvm, p place) {
		name := key(t)
		java := p.open(t, j).thread("1")
		ctx, held := take(t, newReentrant(p.session(t), name, holdfast.Options{Lease: lease}))
		call := java.start("lock", plain, name)
		p.listening(t, plain, name, 1)
		p.cluster.MoveSlot(t, p.cluster.Slot(name), elsewhere(p, name))
		blocked(t, call, "Go has it")
		time.Sleep(time.Second) // Redisson looks around twice a second here
		heard := p.listeners(t, plain.channel(name))
		unlocked := time.Now()
		require.NoError(t, held.Unlock(ctx))
		a := wait(t, call)
		require.NoError(t, a.err)
		note(wrong, "%s, waiting while the slot moved, had %d subscriptions at the new node and came %v after the unlock; the lease is %v",
			j.version, heard, a.ended.Sub(unlocked).Round(time.Millisecond), lease)
		require.Less(t, a.ended.Sub(unlocked), lease+5*time.Second)
		java.do(t, "unlock", plain, name)
	})
}

// While a slot is half moved scripts of several keys are refused: neither side gets
// in beside the other, and all goes on when the move is over.
func TestMovingSlot_nobodyGetsInBesideAnother(t *testing.T) {
	inACluster(t, func(t *testing.T, j *jvm, p place) {
		for _, k := range []kind{reader, plain} {
			name := key(t) + ":" + k.name
			against := k
			if k.java == reader.java {
				against = writer
			}
			java, other := p.open(t, j).thread("1"), p.open(t, j).thread("1")
			java.do(t, "lock", k, name)
			move := p.cluster.BeginMove(t, p.cluster.Slot(name), elsewhere(p, name))
			move.MoveKeys(name)
			goTry := waitFor(t, against.lock(p.session(t), name, holdfast.Options{}))
			javaTry := other.start("try", against, name, 2000)
			time.Sleep(500 * time.Millisecond)
			waits(t, goTry, "Java has it")
			unlock := java.start("unlock", k, name)
			time.Sleep(500 * time.Millisecond)
			move.Finish()
			a := wait(t, unlock)
			tried := wait(t, javaTry)
			t.Logf("%s: in the middle of it Java's unlock: %v after %v; its try: %v %v",
				k.name, a.err, a.ended.Sub(a.began), tried.value, tried.err)
			if tried.value == "true" {
				waits(t, goTry, "Java has it")
				other.do(t, "unlock", against, name)
			}
			if a.err != nil {
				wait(t, java.start("unlock", k, name))
			}
			g := granted(t, goTry)
			require.NoError(t, g.lease.Unlock(g.ctx))
		}
	})
}

// Redisson's read unlock looks at the holds of other readers under keys that it does
// not declare. If their half of a slot were gone it would find nobody and delete the
// lock under them.
func TestMovingSlot_aReaderOfJavaThatLeavesTakesNoReaderOfGoAlong(t *testing.T) {
	inACluster(t, func(t *testing.T, j *jvm, p place) {
		name := key(t)
		java := p.open(t, j).thread("1")
		java.do(t, "lock", reader, name)
		ctx, lease := take(t, newReader(p.session(t), name, holdfast.Options{}))
		move := p.cluster.BeginMove(t, p.cluster.Slot(name), elsewhere(p, name))
		move.MoveKeys("{" + name + "}:" + lease.Owner() + ":rwlock_timeout:1")
		unlock := java.start("unlock", reader, name)
		time.Sleep(time.Second)
		held := p.cluster.Owner(p.cluster.Slot(name)).Do(t, "HEXISTS", name, lease.Owner())
		move.Finish()
		a := wait(t, unlock)
		t.Logf("Java's unlock: %v after %v; Go's field then: %s", a.err, a.ended.Sub(a.began), held)
		require.Equal(t, "1", held)
		require.NoError(t, ctx.Err())
		require.NoError(t, lease.Unlock(ctx))
		if a.err != nil {
			wait(t, java.start("unlock", reader, name))
		}
	})
}
