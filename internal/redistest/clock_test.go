package redistest_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

func clock(t *testing.T) *redistest.Clock {
	t.Helper()
	c, err := redistest.NewClock(t)
	if errors.Is(err, redistest.ErrNoCompiler) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return c
}

func TestClock(t *testing.T) {
	c := clock(t)
	s := redistest.Run(t, redistest.Options{Clock: c})
	ttl := func(key string) time.Duration {
		ms, err := strconv.Atoi(s.Do(t, "PTTL", key))
		require.NoError(t, err)
		return time.Duration(ms) * time.Millisecond
	}
	now := func() time.Time {
		sec, err := strconv.ParseInt(s.Do(t, "EVAL", "return redis.call('TIME')[1]", "0"), 10, 64)
		require.NoError(t, err)
		return time.Unix(sec, 0)
	}
	require.WithinDuration(t, time.Now(), now(), within)
	s.Do(t, "SET", "short", "v", "EX", "300")
	s.Do(t, "SET", "long", "v", "EX", "1200")

	c.Jump(10 * time.Minute)
	require.Equal(t, "0", s.Do(t, "EXISTS", "short"))
	require.InDelta(t, 10*time.Minute, ttl("long"), float64(within))
	require.WithinDuration(t, time.Now().Add(10*time.Minute), now(), within)

	c.Jump(-20 * time.Minute)
	require.InDelta(t, 30*time.Minute, ttl("long"), float64(within))
	require.WithinDuration(t, time.Now().Add(-10*time.Minute), now(), within)

	// The timers of the server itself have not jumped.
	start := time.Now()
	require.Empty(t, s.Do(t, "BLPOP", "none", "0.1"))
	require.InDelta(t, 100*time.Millisecond, time.Since(start), float64(time.Second))

	require.NoError(t, s.Restart())
	require.WithinDuration(t, time.Now().Add(-10*time.Minute), now(), within)
}

func TestNoCompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := redistest.NewClock(t)
	require.ErrorIs(t, err, redistest.ErrNoCompiler)
}
