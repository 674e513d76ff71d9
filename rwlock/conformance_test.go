package rwlock_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
)

// What Redisson's own tests check of its read-write lock, beside those of the list in
// docs/redisson.md that stand elsewhere. The number is that of the list.

func TestScenario_RW02_theReadSideIsLockedWhenSomebodyReads(t *testing.T) {
	l, other := newLock(t, session(t, redisAddr), key(t)), newLock(t, session(t, redisAddr), key(t))
	readers := func() int {
		info, err := other.Reader().Info(context.Background())
		require.NoError(t, err)
		require.Equal(t, "write", info.Mode)
		return len(info.Holders) - 1
	}
	ctx, w := lock(t, l.Writer())
	require.Zero(t, readers())
	_, r, err := l.Reader().TryLock(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, readers())
	unlock(t, r)
	unlock(t, w)
}

func TestScenario_RW12_aWriterThatReadsAndStopsWritingStillReads(t *testing.T) {
	l, other := newLock(t, session(t, redisAddr), key(t)), newLock(t, session(t, redisAddr), key(t))
	ctx, w := lock(t, l.Writer())
	_, r, err := l.Reader().TryLock(ctx)
	require.NoError(t, err)
	taken(t, other.Reader())
	unlock(t, w)
	taken(t, l.Writer())
	unlock(t, r)
	free(t, l.Writer())
}

func TestScenario_RW14_twoReadersAndAWriterInTurn(t *testing.T) {
	l, other := newLock(t, session(t, redisAddr), key(t)), newLock(t, session(t, redisAddr), key(t))
	force := func(side interface {
		ForceUnlock(ctx context.Context) (bool, error)
	},
	) bool {
		was, err := side.ForceUnlock(context.Background())
		require.NoError(t, err)
		return was
	}
	require.False(t, force(l.Reader()))
	ctx1, r1 := lock(t, l.Reader())
	taken(t, other.Writer())
	ctx2, r2 := lock(t, other.Reader())
	unlock(t, r1)
	require.Nil(t, l.Reader().Held(ctx1))
	require.NotNil(t, other.Reader().Held(ctx2))
	taken(t, l.Writer())
	unlock(t, r2)
	ctx, w, err := l.Writer().TryLock(context.Background())
	require.NoError(t, err)
	require.NotNil(t, l.Writer().Held(ctx))
	unlock(t, w)
	_, w, err = l.Writer().TryLock(context.Background())
	require.NoError(t, err)
	require.True(t, force(l.Writer()))
	require.ErrorIs(t, w.Unlock(context.Background()), holdfast.ErrLost)
	free(t, other.Writer())
}

func TestScenario_RW20_RW21_holdCountsAndWhoHolds(t *testing.T) {
	l, other := newLock(t, session(t, redisAddr), key(t)), newLock(t, session(t, redisAddr), key(t))
	for _, side := range []struct {
		mode         string
		mine         holdfast.Locker
		held, others func(context.Context) *holdfast.Lease
	}{
		{"read", l.Reader(), l.Reader().Held, other.Reader().Held},
		{"write", l.Writer(), l.Writer().Held, other.Writer().Held},
	} {
		mode := func() string {
			info, err := other.Reader().Info(context.Background())
			require.NoError(t, err)
			return info.Mode
		}
		require.Equal(t, "free", mode())
		ctx, lease := lock(t, side.mine)
		require.Equal(t, 1, lease.Holds())
		require.Equal(t, side.mode, mode())
		require.NotNil(t, side.held(ctx))
		require.Nil(t, side.others(ctx), "not another session's")
		require.Nil(t, side.held(context.Background()), "nor another caller's")
		_, nested, err := side.mine.Lock(ctx)
		require.NoError(t, err)
		require.Equal(t, 2, lease.Holds())
		unlock(t, nested)
		require.Equal(t, 1, lease.Holds())
		unlock(t, lease)
		require.Zero(t, lease.Holds())
		require.Nil(t, side.held(ctx))
		require.Equal(t, "free", mode())
	}
}

func TestScenario_RW22_whoDoesNotReadCannotUnlock(t *testing.T) {
	ctx, r := lock(t, newLock(t, session(t, redisAddr), key(t)).Reader())
	var none *holdfast.Lease
	require.ErrorIs(t, none.Unlock(context.Background()), holdfast.ErrNotHeld)
	require.NoError(t, ctx.Err())
	unlock(t, r)
	require.ErrorIs(t, r.Unlock(context.Background()), holdfast.ErrNotHeld)
}
