package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The fake is only worth something if it does what the scripts do.
func TestTheFakeDoesWhatTheScriptsDo(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		ctx := context.Background()
		s := w.request("a", terms(time.Second, fencing)).Store
		g, err := s.Take(ctx, "me", 3)
		require.NoError(t, err)
		require.Equal(t, Grant{Taken: true, Token: 1, Block: 3}, g)
		time.Sleep(500 * time.Millisecond)
		g, _ = s.Take(ctx, "other", 1)
		require.Equal(t, Grant{Left: 500*time.Millisecond - 2*way}, g)
		g, _ = s.Take(ctx, "me", 3)
		require.Equal(t, Grant{Taken: true, Token: 3, Block: 1}, g, "the last of the block is read back")
		_, _, left := w.look("a")
		require.Equal(t, time.Second-way, left, "the TTL is lifted")

		v, _ := s.Count(ctx, "other", 7)
		require.Equal(t, Other, v)
		v, _ = s.Count(ctx, "me", 2)
		require.Equal(t, Mine, v)
		_, n, _ := w.look("a")
		require.Equal(t, 2, n)

		out := s.Renewer().Renew(ctx, []Renewal{s.Renewal("me", time.Millisecond), s.Renewal("other", time.Hour), {Key: "b"}})
		require.Equal(t, []Outcome{{Verdict: Mine}, {Verdict: Other}, {Verdict: Gone}}, out)
		_, _, left = w.look("a")
		require.Greater(t, left, 990*time.Millisecond, "the TTL is never lowered")

		f, _ := s.Release(ctx, "other", 0)
		require.Equal(t, Farewell{Other, -1}, f)
		f, _ = s.Release(ctx, "me", 100*time.Millisecond)
		require.Equal(t, Farewell{Mine, 0}, f)
		require.Equal(t, "me:released", w.holder("a"))
		time.Sleep(100 * time.Millisecond)
		f, _ = s.Release(ctx, "me", 0)
		require.Equal(t, Farewell{Gone, -1}, f)

		w.plan(func(_ cmd, p *plan) { p.hole = true })
		short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		defer cancel()
		_, err = s.Take(short, "me", 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, "me", w.holder("a"), "executed, but no reply came")
		_, _ = s.Release(short, "me", 0)
		require.Equal(t, "me", w.holder("a"))
		time.Sleep(way)
		synctest.Wait()
		require.Empty(t, w.holder("a"), "a command that was sent is not taken back")
	})
}
