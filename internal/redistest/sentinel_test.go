package redistest_test

import (
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

func TestRunSentinel(t *testing.T) {
	t.Parallel()
	s := redistest.RunSentinel(t)
	first := s.Primary()
	require.Len(t, s.Addrs(), 3)
	require.Len(t, s.Sentinels(), 3)
	require.Same(t, s.Servers()[0], first)
	c := s.Client(t)
	require.Equal(t, rueidis.ClientModeSentinel, c.Mode())
	works(t, c, "k")
	first.WaitInStep(t, s.Servers()[1:]...)
	kept := first.Do(t, "GET", "k")

	second := s.Failover(t)
	require.NotSame(t, first, second)
	require.Same(t, second, s.Primary())
	require.Equal(t, kept, second.Do(t, "GET", "k"))
	_, err := first.TryDo("SET", "k", "v")
	require.ErrorContains(t, err, "READONLY")
	works(t, c, "k")

	for _, r := range s.Servers() {
		if r != second {
			second.WaitInStep(t, r)
		}
	}
	kept = second.Do(t, "GET", "k")
	third := s.KillPrimary(t)
	require.NotSame(t, second, third)
	require.Equal(t, kept, third.Do(t, "GET", "k"))
	works(t, c, "k")

	s.Restart(t, second)
	require.Same(t, third, s.Primary())
	third.WaitInStep(t, second)
	require.Equal(t, third.Do(t, "GET", "k"), second.Do(t, "GET", "k"))

	// A replica is one from the start of it, without the sentinels.
	for _, w := range s.Sentinels()[:2] {
		w.Kill()
	}
	require.NoError(t, second.Restart())
	require.Equal(t, "slave", second.Do(t, "ROLE")[:5])
	require.Nil(t, s.Primary())
	works(t, c, "k")
	s.Stop()
	require.Zero(t, third.PID())
}
