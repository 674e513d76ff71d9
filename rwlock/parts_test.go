package rwlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/rwlock"
)

// nobodyWrites checks that no other writer of hf comes in while reader lives, neither
// by being handed the lock nor from another process.
func nobodyWrites(t *testing.T, hf *holdfast.Session, l *rwlock.Lock, leave func(), reader *holdfast.Lease) {
	t.Helper()
	got := make(chan error, 1)
	go func() {
		_, next, err := l.Writer().Lock(within(t, 1500*time.Millisecond))
		if err == nil {
			err = next.Unlock(context.Background())
		}
		got <- err
	}()
	waiting(t, hf, 1)
	leave()
	require.ErrorIs(t, <-got, holdfast.ErrNotAcquired, "a writer beside a live reader")
	_, _, err := newLock(t, session(t, redisAddr), key(t)).Writer().TryLock(t.Context())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.NoError(t, reader.Context().Err())
	require.NoError(t, reader.Unlock(context.Background()))
}

func TestDowngrade_ofOneOfTwoLeasesOutlivesTheOtherWithoutAHandover(t *testing.T) {
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t))
	_, w := lock(t, l.Writer())
	_, nested, err := l.Writer().Lock(holdfast.WithLease(context.Background(), w))
	require.NoError(t, err)
	_, r, err := l.Writer().Downgrade(context.Background(), nested)
	require.NoError(t, err)
	nobodyWrites(t, hf, l, func() { unlock(t, w) }, r)
}

func TestMinHold_doesNotCutAReadThatOutlivesTheWriter(t *testing.T) {
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t), holdfast.Options{MinHold: 100 * time.Millisecond})
	_, w := lock(t, l.Writer())
	_, r, err := l.Reader().Lock(holdfast.WithLease(context.Background(), w))
	require.NoError(t, err)
	nobodyWrites(t, hf, l, func() { unlock(t, w) }, r)
}

// The keys by which those are known that wait may hold anything: a grant that is
// written is a grant.
func TestLock_otherDataInAKeyOfThoseWhoWaitIsNoHalfGrant(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	waiters := "holdfast_rwlock_writers:{" + key(t) + "}"
	server.Do(t, "SET", waiters, "text")
	_, w, err := l.Writer().TryLock(t.Context())
	require.NoError(t, err)
	unlock(t, w)
	server.Do(t, "DEL", waiters)
	for _, name := range []string{"holdfast_rwlock_readers:{", "holdfast_rwlock_turn:{"} {
		server.Do(t, "SET", name+key(t)+"}", "text", "PX", "60000")
	}
	_, r, err := l.Reader().Lock(t.Context())
	require.NoError(t, err)
	unlock(t, r)
	server.Do(t, "DEL", "holdfast_rwlock_readers:{"+key(t)+"}", "holdfast_rwlock_turn:{"+key(t)+"}")
}

func TestClose_letsAWriterReadAsAPartOfItself(t *testing.T) {
	hf := session(t, redisAddr)
	l := newLock(t, hf, key(t))
	ctx, w := lock(t, l.Writer())
	closed := make(chan error, 1)
	go func() { closed <- hf.Close(context.Background()) }()
	require.Eventually(t, func() bool {
		_, _, err := l.Writer().TryLock(t.Context())
		return errors.Is(err, holdfast.ErrClosed)
	}, 5*time.Second, time.Millisecond)
	_, r, err := l.Reader().Lock(ctx)
	require.NoError(t, err)
	unlock(t, r)
	unlock(t, w)
	require.NoError(t, <-closed)
}
