package redistest_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

func TestKillClients(t *testing.T) {
	s := redistest.Run(t)
	normal, sub := dial(t, s.Addr()), dial(t, s.Addr())
	normal.send("PING")
	normal.expect("+PONG")
	sub.send("SUBSCRIBE c")
	sub.expect("*3 $9 subscribe $1 c :1")
	s.KillClients(t, "pubsub")
	sub.cut()
	normal.send("PING")
	normal.expect("+PONG")
	s.KillClients(t, "normal")
	normal.cut()
	require.Equal(t, "PONG", s.Do(t, "PING"))
}

func TestPauseClients(t *testing.T) {
	s := redistest.Run(t)
	w := dial(t, s.Addr())
	w.send("SET k v PX 100")
	w.expect("+OK")
	start := time.Now()
	s.PauseClients(t, 300*time.Millisecond)
	w.send("SET k w NX")
	w.silent()
	w.expect("+OK")
	require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
}

func TestFillMemory(t *testing.T) {
	s := redistest.Run(t, redistest.Options{Args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}})
	s.Do(t, "SET", "k", "v")
	s.Do(t, "SET", "l", "v")
	free := s.FillMemory(t)
	const script = "return redis.call('SET', KEYS[1], 'v')"
	for range 2 {
		_, err := s.TryDo("SET", "k", "w")
		require.ErrorContains(t, err, "OOM")
		_, err = s.TryDo("EVAL", script, "1", "k")
		require.ErrorContains(t, err, "OOM")
		require.Equal(t, "v", s.Do(t, "GET", "k"))
		s.Do(t, "DEL", "l") // frees too little
	}
	require.Equal(t, []string{"k"}, s.Keys(t, "*"), "nothing is evicted")
	free()
	free()
	require.Equal(t, "OK", s.Do(t, "SET", "k", "w"))
	require.Equal(t, "maxmemory 104857600", s.Do(t, "CONFIG", "GET", "maxmemory"))
	require.Equal(t, "maxmemory-policy allkeys-lru", s.Do(t, "CONFIG", "GET", "maxmemory-policy"))

	s.FillMemory(t)
	s.Kill()
}

func TestUser(t *testing.T) {
	s := redistest.Run(t)
	c := s.Client(t, s.User(t, "limited", "~own:*", "+@all", "-del", "resetchannels", "&own:*"))
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	do := func(args ...string) error { return c.Do(ctx, c.B().Arbitrary(args...).Build()).Error() }
	require.NoError(t, do("SET", "own:k", "v"))
	require.ErrorContains(t, do("SET", "other", "v"), "NOPERM")
	require.ErrorContains(t, do("DEL", "own:k"), "NOPERM")
	require.ErrorContains(t, do("PUBLISH", "other", "m"), "NOPERM")
	who, err := c.Do(ctx, c.B().AclWhoami().Build()).ToString()
	require.NoError(t, err)
	require.Equal(t, "limited", who)

	_, err = rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{s.Addr()}, Username: "limited", Password: "wrong", DisableCache: true, ForceSingleClient: true,
	})
	require.ErrorContains(t, err, "WRONGPASS")
	require.Equal(t, "default", s.Do(t, "ACL", "WHOAMI"))
}
