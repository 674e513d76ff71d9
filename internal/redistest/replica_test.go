package redistest_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

func TestReplica(t *testing.T) {
	t.Parallel()
	s := redistest.Run(t)
	s.Do(t, "SET", "before", "v")
	a, b := s.Replica(t), s.Replica(t, redistest.Options{Args: []string{"--replica-read-only", "no"}})
	require.Equal(t, []string{"before"}, a.Keys(t, "*"))
	_, err := a.TryDo("SET", "k", "v")
	require.ErrorContains(t, err, "READONLY")
	b.Do(t, "SET", "local", "v")

	for i := range 100 {
		s.Do(t, "SET", fmt.Sprint(i), "v")
	}
	s.WaitInStep(t, a, b)
	require.Len(t, a.Keys(t, "*"), 101)
	require.Len(t, b.Keys(t, "*"), 102)
	require.Equal(t, "2", s.Do(t, "WAIT", "2", "9000"))

	// A restarted replica is one again.
	require.NoError(t, a.Restart())
	s.WaitInStep(t, a)
	require.Len(t, a.Keys(t, "*"), 101)
}

func TestFailoverByHand(t *testing.T) {
	t.Parallel()
	s := redistest.Run(t)
	r := s.Replica(t)
	s.Do(t, "SET", "k", "kept")
	s.WaitInStep(t, r)
	s.Kill()
	r.Promote(t)
	require.Equal(t, "kept", r.Do(t, "GET", "k"))
	r.Do(t, "SET", "k", "new")

	require.NoError(t, s.Restart())
	require.Empty(t, s.Keys(t, "*"), "it is its own primary again")
	s.Do(t, "SET", "lost", "v")
	s.Follow(t, r)
	require.Equal(t, []string{"k"}, s.Keys(t, "*"))

	// And back, without a crash.
	s.Promote(t)
	r.Follow(t, s)
	s.Do(t, "SET", "k", "newer")
	s.WaitInStep(t, r)
	require.Equal(t, "newer", r.Do(t, "GET", "k"))
	require.NoError(t, s.Restart())
	require.Empty(t, s.Keys(t, "*"))
}

// What was not replicated is lost: the reason why locks on one primary and its
// replicas are not safe by themselves.
func TestFailoverLosesWrites(t *testing.T) {
	t.Parallel()
	s := redistest.Run(t)
	r := s.Replica(t)
	r.Pause()
	s.KillClients(t, "replica") // or the write would wait in the socket of the replica
	s.Do(t, "SET", "k", "v")
	s.Kill()
	r.Resume()
	r.Promote(t)
	require.Empty(t, r.Keys(t, "*"))
}
