package interop_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
)

// What becomes of a name that is a lock of one kind here and of another there.

// eachVersion runs a test with each version of Redisson, on the server.
func eachVersion(t *testing.T, test func(t *testing.T, j *jvm, p place)) {
	t.Helper()
	for _, j := range jvms {
		t.Run("redisson="+j.version, func(t *testing.T) { test(t, j, single(server)) })
	}
}

// Its other exclusive locks have the same key and keep the same order, without a word
// to those who wait.
func TestSpinAndFairLocks_excludeReentrant(t *testing.T) {
	const lease = 700 * time.Millisecond
	eachVersion(t, func(t *testing.T, j *jvm, p place) {
		for _, k := range []kind{{java: "spin"}, {java: "fair"}} {
			name := key(t) + ":" + k.java
			java := p.open(t, j).thread("1")
			l := newReentrant(p.session(t), name, holdfast.Options{Lease: lease})
			ctx, held := take(t, l)
			require.Equal(t, "false", java.do(t, "try", k, name))
			require.NoError(t, held.Unlock(ctx))
			a := wait(t, java.start("lock", k, name, lease))
			require.NoError(t, a.err)
			refused(t, l)
			waiter := waitFor(t, l)
			p.listening(t, plain, name, 1)
			java.do(t, "unlock", k, name)
			g := granted(t, waiter)
			require.GreaterOrEqual(t, g.at.Sub(a.began), lease, "Go was told nothing, and looked when the lease had ended")
			require.NoError(t, g.lease.Unlock(g.ctx))
		}
	})
}

// A read-write lock of Redisson does not see a plain lock in its key, and both sides
// hold it. Go refuses a key of the other kind.
func TestOneNameOfTwoKinds_isRefusedByGoAndNotByJava(t *testing.T) {
	eachVersion(t, func(t *testing.T, j *jvm, p place) {
		java, name := p.open(t, j).thread("1"), key(t)
		hf := p.session(t)
		exclusive, shared := newReentrant(hf, name, holdfast.Options{}), newWriter(hf, name, holdfast.Options{})
		otherKind := func(l holdfast.Locker) {
			t.Helper()
			_, _, err := l.TryLock(context.Background())
			require.ErrorIs(t, err, holdfast.ErrWrongType)
		}
		java.do(t, "lock", plain, name)
		otherKind(shared)
		java.do(t, "unlock", plain, name)
		java.do(t, "lock", writer, name)
		otherKind(exclusive)
		java.do(t, "unlock", writer, name)

		ctx, lease := take(t, shared)
		require.Equal(t, "false", java.do(t, "try", plain, name))
		require.NoError(t, lease.Unlock(ctx))
		ctx, _ = take(t, exclusive)
		require.Equal(t, "true", java.do(t, "try", writer, name), "two hold it")
		require.NoError(t, ctx.Err())
	})
}

// Who asks Redisson for a token with the lock tells a refusal from a grant by the TTL:
// a lock that has none it takes for its own.
func TestFencedLockWithoutATTL_isTakenByJavaBesideItsHolder(t *testing.T) {
	eachVersion(t, func(t *testing.T, j *jvm, p place) {
		java, name := p.open(t, j).thread("1"), key(t)
		l := fenced.lock(p.session(t), name, holdfast.Options{})
		ctx, lease := take(t, l)
		require.Equal(t, "false", java.do(t, "try", fenced, name))
		require.Equal(t, "1", p.do(t, name, "PERSIST", name))
		require.Equal(t, "false", java.do(t, "try", fenced, name), "nor without a token")
		require.Equal(t, "-1", java.do(t, "lockAndGetToken", fenced, name), "it is granted, with no token")
		require.NoError(t, ctx.Err(), "though Go has it")
		require.Equal(t, "false", java.do(t, "isHeld", fenced, name))
		require.NoError(t, lease.Unlock(ctx))
	})
}

// What is left after an unlock with MinHold is a holder like any other to Java.
func TestJava_waitsUntilMinHoldIsOver(t *testing.T) {
	const least = 700 * time.Millisecond
	eachVersion(t, func(t *testing.T, j *jvm, p place) {
		for _, k := range kinds {
			java, name := p.open(t, j).thread("1"), key(t)+":"+k.name
			began := time.Now()
			ctx, lease := take(t, k.lock(p.session(t), name, holdfast.Options{MinHold: least}))
			call := java.start("lock", k, name)
			p.listening(t, k, name, 1)
			require.NoError(t, lease.Unlock(ctx))
			a := wait(t, call)
			require.NoError(t, a.err)
			require.GreaterOrEqual(t, a.ended.Sub(began), least)
			require.Less(t, a.ended.Sub(began), least+5*time.Second)
			java.do(t, "unlock", k, name)
		}
	})
}
