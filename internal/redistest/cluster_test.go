package redistest_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

// works waits until the client can write and read all of these keys again.
func works(t *testing.T, c rueidis.Client, keys ...string) {
	t.Helper()
	for _, key := range keys {
		value := strconv.FormatInt(time.Now().UnixNano(), 10)
		redistest.Eventually(t, within, "the client works", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if c.Do(ctx, c.B().Set().Key(key).Value(value).Build()).Error() != nil {
				return false
			}
			got, err := c.Do(ctx, c.B().Get().Key(key).Build()).ToString()
			return err == nil && got == value
		})
	}
}

// count increments the key all the time until stop, which returns how often it
// was done. No error is allowed.
func count(t *testing.T, c rueidis.Client, key string) (stop func() int) {
	t.Helper()
	var wg sync.WaitGroup
	ended, n := make(chan struct{}), 0
	stop = sync.OnceValue(func() int {
		close(ended)
		wg.Wait()
		return n
	})
	wg.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
			}
			if err := c.Do(context.Background(), c.B().Incr().Key(key).Build()).Error(); err != nil {
				t.Errorf("INCR %s: %v", key, err)
				return
			}
			n++
		}
	})
	t.Cleanup(func() { stop() })
	return stop
}

func TestRunCluster(t *testing.T) {
	t.Parallel()
	c := redistest.RunCluster(t)
	require.Len(t, c.Addrs(), 6)
	client := c.Client(t)
	require.Equal(t, rueidis.ClientModeCluster, client.Mode())
	keys := []string{"a", "b", "c", "d", "{a}x", "x{a}y{b}", "{}a", "a{}{a}", "{a", "a}b{c}", "ключ"}
	for _, key := range keys {
		require.Equal(t, c.Primary(key).Do(t, "CLUSTER", "KEYSLOT", key), strconv.Itoa(int(c.Slot(key))), key)
	}
	owners := map[*redistest.Server]bool{}
	before := c.Calls(t)
	works(t, client, keys[:3]...)
	since := c.Calls(t).Since(before)
	require.EqualValues(t, 3, since.Of("set"))
	require.EqualValues(t, 3, since.Of("get"))
	for _, key := range keys[:3] {
		owners[c.Primary(key)] = true
		require.Equal(t, "1", c.Do(t, key, "EXISTS", key))
	}
	require.Len(t, owners, 3)
	require.Equal(t, []string{"a", "b", "c"}, c.Keys(t, "*"))

	// The steps use one cluster, for the start is what takes time.
	t.Run("MoveSlot", func(t *testing.T) { moveSlot(t, c, client) })
	t.Run("BeginMove", func(t *testing.T) { beginMove(t, c) })
	t.Run("Failover", func(t *testing.T) { failover(t, c, client) })
	t.Run("KillPrimary", func(t *testing.T) { killPrimary(t, c, client) })
	t.Run("Pause", func(t *testing.T) { pausePrimary(t, c) })
	t.Run("User", func(t *testing.T) {
		limited := c.Client(t, c.User(t, "limited", "~*", "+@all", "-del"))
		works(t, limited, "a", "b", "c")
		err := limited.Do(t.Context(), limited.B().Del().Key("a").Build()).Error()
		require.ErrorContains(t, err, "NOPERM")
	})
}

func other(t *testing.T, c *redistest.Cluster, not *redistest.Server) *redistest.Server {
	t.Helper()
	for slot := uint16(0); ; slot += 1000 {
		if s := c.Owner(slot); s != not {
			return s
		}
	}
}

func moveSlot(t *testing.T, c *redistest.Cluster, client rueidis.Client) {
	const key = "moving"
	from := c.Primary(key)
	to := other(t, c, from)
	for i := range 250 {
		c.Do(t, key, "SET", fmt.Sprintf("{moving}%d", i), "v", "PX", "100000")
	}
	stop := count(t, client, key)
	c.MoveSlot(t, c.Slot(key), to)
	require.Same(t, to, c.Primary(key))
	_, err := from.TryDo("GET", key)
	require.ErrorContains(t, err, "MOVED")
	works(t, client, "{moving}0")
	c.MoveSlot(t, c.Slot(key), from)
	c.MoveSlot(t, c.Slot(key), from)
	works(t, client, "{moving}0")
	require.Equal(t, strconv.Itoa(stop()), c.Do(t, key, "GET", key))
	require.Len(t, c.Keys(t, "{moving}*"), 250)
	ttl, err := strconv.Atoi(c.Do(t, key, "PTTL", "{moving}1"))
	require.NoError(t, err)
	require.Positive(t, ttl)
	c.WaitOK(t)
}

func beginMove(t *testing.T, c *redistest.Cluster) {
	slot := c.Slot("t")
	from := c.Owner(slot)
	to := other(t, c, from)
	for _, key := range []string{"{t}1", "{t}2", "{t}3"} {
		from.Do(t, "SET", key, "v")
	}
	m := c.BeginMove(t, slot, to)
	require.Same(t, from, c.Owner(slot))
	require.Equal(t, "v", from.Do(t, "GET", "{t}1"))
	_, err := from.TryDo("GET", "{t}none")
	require.ErrorContains(t, err, "ASK")

	m.MoveKeys("{t}1")
	_, err = from.TryDo("GET", "{t}1")
	require.ErrorContains(t, err, "ASK")
	require.Equal(t, "v", from.Do(t, "GET", "{t}2"))
	_, err = from.TryDo("MGET", "{t}1", "{t}2")
	require.ErrorContains(t, err, "TRYAGAIN")
	_, err = to.TryDo("GET", "{t}1")
	require.ErrorContains(t, err, "MOVED")
	to.Do(t, "ASKING")
	require.Equal(t, "v", to.Do(t, "GET", "{t}1"))
	to.Do(t, "ASKING")
	_, err = to.TryDo("MGET", "{t}1", "{t}2")
	require.ErrorContains(t, err, "TRYAGAIN")
	c.WaitOK(t)
	require.Equal(t, []string{"{t}1", "{t}2", "{t}3"}, c.Keys(t, "{t}*"))
	require.Contains(t, fails(t, func(tb redistest.TB) {
		c.BeginMove(tb, c.Slot("t"), c.Replicas(slot)[0])
	}), "SETSLOT")

	m.MoveKeys("{t}2")
	m.Finish()
	require.Same(t, to, c.Owner(slot))
	require.Equal(t, "v v v", to.Do(t, "MGET", "{t}1", "{t}2", "{t}3"))
	_, err = from.TryDo("GET", "{t}1")
	require.ErrorContains(t, err, "MOVED")
}

func failover(t *testing.T, c *redistest.Cluster, client rueidis.Client) {
	slot := c.Slot("a")
	old, replicas := c.Owner(slot), c.Replicas(slot)
	require.Len(t, replicas, 1)
	c.Do(t, "{a}kept", "SET", "{a}kept", "v")
	c.Failover(t, replicas[0])
	require.Same(t, replicas[0], c.Owner(slot))
	require.Equal(t, []*redistest.Server{old}, c.Replicas(slot))
	require.Equal(t, "v", c.Do(t, "{a}kept", "GET", "{a}kept"))
	works(t, client, "a", "b", "c")
	c.Failover(t, old)
	require.Same(t, old, c.Owner(slot))
	works(t, client, "a", "b", "c")
}

func killPrimary(t *testing.T, c *redistest.Cluster, client rueidis.Client) {
	slot := c.Slot("a")
	old, replica := c.Owner(slot), c.Replicas(slot)[0]
	c.Do(t, "{a}kept", "SET", "{a}kept", "w")
	old.WaitInStep(t, replica)
	require.Same(t, replica, c.KillPrimary(t, slot))
	require.Same(t, replica, c.Owner(slot))
	require.Equal(t, "w", c.Do(t, "{a}kept", "GET", "{a}kept"))
	works(t, client, "a", "b", "c")
	require.Contains(t, fails(t, func(tb redistest.TB) { c.KillPrimary(tb, slot) }), "no replica")

	c.Restart(t, old)
	require.Same(t, replica, c.Owner(slot))
	require.Equal(t, []*redistest.Server{old}, c.Replicas(slot))
	require.Equal(t, "1", replica.Do(t, "WAIT", "1", "9000"))
	works(t, client, "a", "b", "c")
}

// A primary that was suspended comes back and does not know better.
func pausePrimary(t *testing.T, c *redistest.Cluster) {
	slot := c.Slot("b")
	old := c.Owner(slot)
	old.Pause()
	redistest.Eventually(t, within, "the replica takes over", func() bool { return c.Owner(slot) != nil })
	c.WaitOK(t)
	require.NotSame(t, old, c.Owner(slot))
	old.Resume()
	c.WaitOK(t)
	require.Equal(t, []*redistest.Server{old}, c.Replicas(slot))
}

func TestRunClusterOfPrimaries(t *testing.T) {
	t.Parallel()
	c := redistest.RunCluster(t, redistest.ClusterOptions{Primaries: 2, Args: []string{"--cluster-require-full-coverage", "no"}})
	require.Len(t, c.Servers(), 2)
	require.Same(t, c.Servers()[0], c.Owner(8191))
	require.Same(t, c.Servers()[1], c.Owner(8192))
	works(t, c.Client(t), "a", "b", "c")
	s := c.Primary("a")
	s.Kill()
	require.Nil(t, c.Primary("a"))
	require.Contains(t, fails(t, func(tb redistest.TB) { c.Do(tb, "a", "GET", "a") }), "nobody serves")
	c.Restart(t, s)
	require.Same(t, s, c.Primary("a"))
	require.Empty(t, c.Do(t, "a", "GET", "a"))
	c.Stop()
	require.Zero(t, s.PID())
}
