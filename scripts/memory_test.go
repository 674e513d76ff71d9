package scripts_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/scripts"
)

// When Redis may take no more memory, nobody gets a lock, and everybody who has
// one can keep it and give it back. Miniredis has no maxmemory.
func TestOutOfMemory(t *testing.T) {
	s := redistest.Run(t)
	b := &backend{name: "full", client: s.Client(t)}
	ear := b.listen(t, "channel")
	s.Do(t, "SET", "filler", strings.Repeat("x", 4<<20))
	s.Do(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")

	for _, c := range []struct {
		name   string
		script *scripts.Script
		keys   string
		do     string // while there is memory
		args   string
		reply  string // "!OOM": refused, and everything stays as it was
		lock   string
		ttl    int
		more   string
		heard  string
	}{
		{name: "acquire is refused and leaves nothing", script: scripts.ReentrantAcquire, keys: "lock", args: "me 60000", reply: "!OOM"},
		{name: "fenced acquire is refused and leaves nothing", script: scripts.ReentrantAcquireFenced, keys: "lock more", args: "me 60000 1 -1", reply: "!OOM"},
		{name: "a stranger is told how long", script: scripts.ReentrantAcquire, keys: "lock", do: taken, args: "me 60000", reply: "~60000", lock: "you=1", ttl: 60_000},
		{name: "a repeated acquire answers as the first did", script: scripts.ReentrantAcquire, keys: "lock", do: held, args: "me 600000", reply: "-2", lock: "me=1", ttl: 600_000},
		{name: "a repeated fenced acquire reads its token back", script: scripts.ReentrantAcquireFenced, keys: "lock more", do: held + "; SET more 7", args: "me 600000 1 -1", reply: "7", lock: "me=1", ttl: 600_000, more: "'7"},
		{name: "renew", script: scripts.ReentrantRenew, keys: "lock", do: held, args: "me 600000", reply: "[1]", lock: "me=1", ttl: 600_000},
		{name: "count up", script: scripts.ReentrantCount, keys: "lock", do: held, args: "me 2 600000", reply: "1", lock: "me=2", ttl: 60_000},
		{name: "count up of a lock without TTL", script: scripts.ReentrantCount, keys: "lock", do: "HSET lock me 1", args: "me 2 600000", reply: "1", lock: "me=2", ttl: 600_000},
		{name: "count down", script: scripts.ReentrantCount, keys: "lock", do: "HSET lock me 2; PEXPIRE lock 60000", args: "me 1 60000", reply: "1", lock: "me=1", ttl: 60_000},
		{name: "release", script: scripts.ReentrantRelease, keys: "lock", do: held, args: "me channel BOTH 0", reply: "3", heard: "BOTH"},
		{name: "release that keeps", script: scripts.ReentrantRelease, keys: "lock", do: "HSET lock me 1; PEXPIRE lock 600000", args: "me channel BOTH 60000", reply: "3", lock: "me:released=1", ttl: 60_000, heard: "BOTH"},
		{name: "release that keeps for longer than is left", script: scripts.ReentrantRelease, keys: "lock", do: held, args: "me channel BOTH 600000", reply: "3", lock: "me:released=1", ttl: 600_000, heard: "BOTH"},
		{name: "release that keeps a lock without TTL", script: scripts.ReentrantRelease, keys: "lock", do: "HSET lock me 1", args: "me channel BOTH 60000", reply: "3", lock: "me:released=1", ttl: 60_000, heard: "BOTH"},
		{name: "release with receipt", script: scripts.ReentrantReleaseReceipt, keys: "lock more", do: held, args: "me channel BOTH 0 7 60000", reply: "3", more: "'7", heard: "BOTH"},
		{name: "release with receipt that keeps", script: scripts.ReentrantReleaseReceipt, keys: "lock more", do: "HSET lock me 1; PEXPIRE lock 600000", args: "me channel BOTH 60000 7 60000", reply: "3", lock: "me:released=1", ttl: 60_000, more: "'7", heard: "BOTH"},
		{name: "release with receipt that keeps for longer than is left", script: scripts.ReentrantReleaseReceipt, keys: "lock more", do: held, args: "me channel BOTH 600000 7 60000", reply: "3", lock: "me:released=1", ttl: 600_000, more: "'7", heard: "BOTH"},
		{name: "force", script: scripts.ReentrantForce, keys: "lock", do: taken, args: "channel BOTH", reply: "1", heard: "BOTH"},
		{name: "info", script: scripts.ReentrantInfo, keys: "lock", do: held, reply: "[~60000 me 1]", lock: "me=1", ttl: 60_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.Do(t, "DEL", "lock", "more")
			b.do(t, nil, c.do)
			s.Do(t, "CONFIG", "SET", "maxmemory", "1mb")
			defer s.Do(t, "CONFIG", "SET", "maxmemory", "0")
			_, err := s.TryDo("SET", "probe", "x")
			require.ErrorContains(t, err, "OOM", "the server is not full")

			got := text(c.script.Exec(t.Context(), b.client, expand(nil, c.keys), expand(nil, c.args)))
			b.requireReply(t, c.reply, got, new(int64), 0, 0, got)
			require.Equal(t, c.lock, b.state(t, "lock"))
			b.requireTTL(t, "lock", c.ttl)
			require.Equal(t, c.more, b.state(t, "more"))
			require.Equal(t, c.heard, ear.heard(t))
		})
	}
}
