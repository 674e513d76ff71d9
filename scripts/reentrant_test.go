package scripts_test

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/scripts"
)

const (
	held   = "HSET lock me 1; PEXPIRE lock 60000"
	taken  = "HSET lock you 1; PEXPIRE lock 60000"
	shared = "HSET lock mode read me 1 you 1; PEXPIRE lock 60000" // a read-write lock
	kept   = "HSET lock me:released 1; PEXPIRE lock 60000"
)

func TestAcquire(t *testing.T) {
	table{script: scripts.ReentrantAcquire, keys: "lock", rows: []row{
		{"a free lock is taken and a repeat answers as the first did", []step{
			{args: "me 60000", reply: "-2", lock: "me=1", ttl: 60_000},
		}},
		{"a stranger learns how long the holder may keep it and changes nothing", []step{
			{args: "me 60000", reply: "-2", lock: "me=1", ttl: 60_000},
			{args: "you 600000", reply: "~60000", lock: "me=1", ttl: 60_000},
			{args: "me 60000", reply: "-2", lock: "me=1", ttl: 60_000},
		}},
		{"a foreign hash without TTL has no end", []step{
			{do: "HSET lock you 1", args: "me 60000", reply: "-1", lock: "you=1", ttl: -1},
		}},
		{"a late copy after the lock was lost takes it anew", []step{
			{args: "me 60000", reply: "-2", lock: "me=1", ttl: 60_000},
			{do: "DEL lock", args: "me 60000", reply: "-2", lock: "me=1", ttl: 60_000},
		}},
		{"a late copy after another took the lock is refused", []step{
			{args: "me 60000", reply: "-2", lock: "me=1", ttl: 60_000},
			{do: "DEL lock; " + taken, args: "me 60000", reply: "~60000", lock: "you=1", ttl: 60_000},
		}},
		{"a repeat lifts the TTL to the lease", []step{
			{do: held, args: "me 600000", reply: "-2", lock: "me=1", ttl: 600_000},
		}},
		{"a repeat never lowers the TTL", []step{
			{do: "HSET lock me 1; PEXPIRE lock 600000", args: "me 60000", reply: "-2", lock: "me=1", ttl: 600_000},
		}},
		{"a repeat gives a lock without TTL its lease", []step{
			{do: "HSET lock me 1", args: "me 60000", reply: "-2", lock: "me=1", ttl: 60_000},
		}},
		{"a repeat leaves the count of nested holds", []step{
			{do: "HSET lock me 3; PEXPIRE lock 60000", args: "me 60000", reply: "-2", lock: "me=3", ttl: 60_000},
		}},
		{"a lock that is kept after its release is nobody's", []step{
			{do: kept, args: "me 600000", reply: "~60000", lock: "me:released=1", ttl: 60_000},
			{args: "you 600000", reply: "~60000", lock: "me:released=1", ttl: 60_000},
		}},
		{"a read-write lock is left alone", []step{
			{do: shared, args: "me 600000", reply: "!WRONGTYPE", lock: "me=1 mode=read you=1", ttl: 60_000},
			{args: "they 600000", reply: "!WRONGTYPE", lock: "me=1 mode=read you=1", ttl: 60_000},
		}},
		{"a string is left alone", []step{
			{do: "SET lock text", args: "me 60000", reply: "!WRONGTYPE", lock: "'text", ttl: -1},
		}},
		{"a list with TTL is left alone", []step{
			{do: "RPUSH lock a; PEXPIRE lock 600000", args: "me 60000", reply: "!WRONGTYPE", lock: "list", ttl: 600_000},
		}},
	}}.run(t)
}

func TestAcquireFenced(t *testing.T) {
	const future = 9_000_000_000_000_000 // below 2^53 and in the year 2255
	table{script: scripts.ReentrantAcquireFenced, keys: "lock more", rows: []row{
		{"the first token is the server's time and a repeat reads it back", []step{
			{args: "me 60000 1 600000", reply: "@now", again: "@+0", lock: "me=1", ttl: 60_000, more: "@+0", moreTTL: 600_000},
		}},
		{"a block is reserved and a repeat gets its last token", []step{
			{args: "me 60000 5 600000", reply: "[@now 5]", again: "@+4", lock: "me=1", ttl: 60_000, more: "@+4", moreTTL: 600_000},
		}},
		{"tokens rise from owner to owner", []step{
			{args: "me 60000 2 600000", reply: "[@now 2]", again: "@+1", lock: "me=1", ttl: 60_000, more: "@+1", moreTTL: 600_000},
			{do: "DEL lock", args: "you 60000 2 600000", reply: "[@now 2]", again: "@+1", lock: "you=1", ttl: 60_000, more: "@+1", moreTTL: 600_000},
		}},
		{"a stranger is refused and mints none", []step{
			{args: "me 60000 1 600000", reply: "@now", again: "@+0", lock: "me=1", ttl: 60_000, more: "@+0", moreTTL: 600_000},
			{args: "you 90000 9 900000", reply: "~60000", lock: "me=1", ttl: 60_000, more: "@+0", moreTTL: 600_000},
		}},
		{"a foreign hash without TTL has no end", []step{
			{do: "HSET lock you 1", args: "me 60000 1 600000", reply: "-1", lock: "you=1", ttl: -1},
		}},
		{"a counter that was lost does not send tokens back", []step{
			{args: "me 60000 3 600000", reply: "[@now 3]", again: "@+2", lock: "me=1", ttl: 60_000, more: "@+2", moreTTL: 600_000},
			{do: "DEL lock more", args: "you 60000 1 600000", reply: "@now", again: "@+0", lock: "you=1", ttl: 60_000, more: "@+0", moreTTL: 600_000},
		}},
		{"the holder of a lost counter gets newer tokens", []step{
			{args: "me 60000 3 600000", reply: "[@now 3]", again: "@+2", lock: "me=1", ttl: 60_000, more: "@+2", moreTTL: 600_000},
			{do: "DEL more", args: "me 60000 3 600000", reply: "[@now 3]", again: "@+2", lock: "me=1", ttl: 60_000, more: "@+2", moreTTL: 600_000},
		}},
		{"the holder of a lost counter keeps a longer TTL", []step{
			{do: "HSET lock me 2; PEXPIRE lock 600000", args: "me 60000 1 600000", reply: "@now", again: "@+0", lock: "me=2", ttl: 600_000, more: "@+0", moreTTL: 600_000},
		}},
		{"a counter that leads the clock goes on by one and reserves no block", []step{
			{
				do: fmt.Sprint("SET more ", future), args: "me 60000 5 600000",
				reply: fmt.Sprint(future + 1), lock: "me=1", ttl: 60_000, more: fmt.Sprint("'", future+1), moreTTL: -1,
			},
			{
				do: "DEL lock", args: "you 60000 5 600000",
				reply: fmt.Sprint(future + 2), lock: "you=1", ttl: 60_000, more: fmt.Sprint("'", future+2), moreTTL: -1,
			},
		}},
		{"a counter of Redisson jumps to the clock and keeps no TTL", []step{
			{do: "SET more 41", args: "me 60000 2 600000", reply: "[@now 2]", again: "@+1", lock: "me=1", ttl: 60_000, more: "@+1", moreTTL: -1},
		}},
		{"a counter with TTL gets the retention anew", []step{
			{do: "SET more 41 PX 60000", args: "me 60000 1 600000", reply: "@now", again: "@+0", lock: "me=1", ttl: 60_000, more: "@+0", moreTTL: 600_000},
		}},
		{"retention -1 is for ever", []step{
			{args: "me 60000 1 -1", reply: "@now", again: "@+0", lock: "me=1", ttl: 60_000, more: "@+0", moreTTL: -1},
		}},
		{"retention -1 takes the TTL of a counter away", []step{
			{do: "SET more 41 PX 60000", args: "me 60000 1 -1", reply: "@now", again: "@+0", lock: "me=1", ttl: 60_000, more: "@+0", moreTTL: -1},
		}},
		{"the largest tokens are exact", []step{
			{do: "SET more 9007199254740990", args: "me 60000 1 600000", reply: "9007199254740991", lock: "me=1", ttl: 60_000, more: "'9007199254740991", moreTTL: -1},
		}},
		{"a repeat lifts the TTL to the lease", []step{
			{do: held + "; SET more 7 PX 60000", args: "me 600000 3 600000", reply: "7", lock: "me=1", ttl: 600_000, more: "'7", moreTTL: 60_000},
		}},
		{"a repeat never lowers the TTL", []step{
			{do: "HSET lock me 1; PEXPIRE lock 600000; SET more 7", args: "me 60000 3 600000", reply: "7", lock: "me=1", ttl: 600_000, more: "'7", moreTTL: -1},
		}},
		{"a repeat gives a lock without TTL its lease", []step{
			{do: "HSET lock me 1; SET more 7", args: "me 60000 1 600000", reply: "7", lock: "me=1", ttl: 60_000, more: "'7", moreTTL: -1},
		}},
		{"a late copy after another took the lock is refused", []step{
			{args: "me 60000 1 600000", reply: "@now", again: "@+0", lock: "me=1", ttl: 60_000, more: "@+0", moreTTL: 600_000},
			{do: "DEL lock; " + taken, args: "me 60000 1 600000", reply: "~60000", lock: "you=1", ttl: 60_000, more: "@+0", moreTTL: 600_000},
		}},
		{"a lock that is kept after its release is nobody's and no token is minted", []step{
			{do: kept + "; SET more 7", args: "me 600000 1 600000", reply: "~60000", lock: "me:released=1", ttl: 60_000, more: "'7", moreTTL: -1},
			{do: "DEL more", args: "me 600000 1 600000", reply: "~60000", lock: "me:released=1", ttl: 60_000},
		}},
		{"the holder reads the largest token back", []step{
			{do: held + "; SET more 9007199254740991", args: "me 600000 1 600000", reply: "9007199254740991", lock: "me=1", ttl: 600_000, more: "'9007199254740991", moreTTL: -1},
		}},
		{"a counter of 16 digits is a number", []step{
			{do: "SET more 0000000000000041", args: "me 60000 1 600000", reply: "@now", again: "@+0", lock: "me=1", ttl: 60_000, more: "@+0", moreTTL: -1},
		}},
		{"a counter of 0 is a number", []step{
			{do: "SET more 0", args: "me 60000 1 600000", reply: "@now", again: "@+0", lock: "me=1", ttl: 60_000, more: "@+0", moreTTL: -1},
		}},
		{"a counter that is no number leaves the lock free", []step{
			{do: "SET more text", args: "me 60000 1 600000", reply: "!WRONGTYPE", more: "'text", moreTTL: -1},
		}},
		{"a counter that is no number is refused to its holder too", []step{
			{do: held + "; SET more text", args: "me 600000 1 600000", reply: "!WRONGTYPE", lock: "me=1", ttl: 60_000, more: "'text", moreTTL: -1},
		}},
		{"a counter of a wrong type leaves the lock free", []step{
			{do: "RPUSH more a", args: "me 60000 1 600000", reply: "!WRONGTYPE", more: "list", moreTTL: -1},
		}},
		{"a read-write lock is left alone", []step{
			{do: shared, args: "me 600000 1 600000", reply: "!WRONGTYPE", lock: "me=1 mode=read you=1", ttl: 60_000},
		}},
		{"a string is left alone", []step{
			{do: "SET lock text", args: "me 60000 1 600000", reply: "!WRONGTYPE", lock: "'text", ttl: -1},
		}},
	}}.run(t)
}

// Tokens are strings, since some clients read numbers as floats.
func TestAcquireFenced_tokenIsAString(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		acquire := func(key, block string) rueidis.RedisResult {
			return scripts.ReentrantAcquireFenced.Exec(t.Context(), b.client,
				[]string{name(t) + key, name(t) + key + ":t"}, []string{"me", "60000", block, "600000"})
		}
		one, err := acquire("one", "1").ToMessage()
		require.NoError(t, err)
		several, err := acquire("several", "2").ToArray()
		require.NoError(t, err)
		require.Len(t, several, 2)
		require.True(t, several[1].IsInt64())
		for _, reply := range []rueidis.RedisMessage{one, several[0]} {
			require.True(t, reply.IsString())
			token, err := reply.ToString()
			require.NoError(t, err)
			n, err := strconv.ParseUint(token, 10, 64)
			require.NoError(t, err)
			require.Less(t, n, uint64(1)<<53)
		}
	})
}

// Whatever a counter that somebody else wrote holds, a token rises above it or
// the lock is not taken: then nothing at all is written.
func TestAcquireFenced_refusesWhatItCannotCountOnFrom(t *testing.T) {
	refuse := func(t *testing.T, b *backend, counter, lock string, ttl int) {
		t.Helper()
		key, tokens := name(t), name(t)+":tokens"
		require.NoError(t, b.raw(t, "SET", tokens, counter, "PX", "60000").Error())
		if lock != "" {
			b.do(t, map[string]string{"lock": key}, lock)
		}
		before := b.state(t, key)
		for range 2 {
			r := scripts.ReentrantAcquireFenced.Exec(t.Context(), b.client, []string{key, tokens}, []string{"me", "600000", "1", "-1"})
			b.requireReply(t, "!WRONGTYPE the token counter is no number below 2^53", text(r), new(int64), 0, 0, text(r))
			require.Equal(t, before, b.state(t, key))
			b.requireTTL(t, key, ttl)
			require.Equal(t, "'"+counter, b.state(t, tokens))
			b.requireTTL(t, tokens, 60_000)
		}
	}
	plain := []string{"9007199254740991", "9007199254740992", "9007199254740993", "9999999999999999"}
	other := []string{
		"10000000000000000", "18446744073709551614", "18446744073709551615", "00000000000000041",
		"1e300", "1e3", "inf", "nan", "-nan", "0x10", "1.5", "1.", "-5", "+5", "-", "5_", "", " ", " 5", "5 ", "5\n", "5\x00", "\x005", "١",
	}
	for _, counter := range append(plain, other...) {
		t.Run(fmt.Sprintf("%q", counter), func(t *testing.T) {
			everywhere(t, func(t *testing.T, b *backend) { refuse(t, b, counter, "", 0) })
		})
	}
	for _, counter := range other {
		t.Run(fmt.Sprintf("%q, to the holder too", counter), func(t *testing.T) {
			everywhere(t, func(t *testing.T, b *backend) { refuse(t, b, counter, held, 60_000) })
		})
	}
}

func TestCount(t *testing.T) {
	table{script: scripts.ReentrantCount, keys: "lock", rows: []row{
		{"the holder's count is set and a repeat sets the same", []step{
			{do: held, args: "me 2 60000", reply: "1", lock: "me=2", ttl: 60_000},
			{args: "me 3 60000", reply: "1", lock: "me=3", ttl: 60_000},
			{args: "me 2 60000", reply: "1", lock: "me=2", ttl: 60_000},
			{args: "me 1 60000", reply: "1", lock: "me=1", ttl: 60_000},
		}},
		{"the TTL is not lifted to the lease", []step{
			{do: held, args: "me 2 600000", reply: "1", lock: "me=2", ttl: 60_000},
		}},
		{"the TTL is not lowered to the lease", []step{
			{do: "HSET lock me 1; PEXPIRE lock 600000", args: "me 2 60000", reply: "1", lock: "me=2", ttl: 600_000},
		}},
		{"a lock without TTL gets the lease", []step{
			{do: "HSET lock me 1", args: "me 2 60000", reply: "1", lock: "me=2", ttl: 60_000},
		}},
		{"nobody's lock is not created", []step{
			{args: "me 2 60000", reply: "0"},
		}},
		{"a lock that was lost is not created again", []step{
			{do: held, args: "me 2 60000", reply: "1", lock: "me=2", ttl: 60_000},
			{do: "DEL lock", args: "me 2 60000", reply: "0"},
			{do: taken, args: "me 2 600000", reply: "-1", lock: "you=1", ttl: 60_000},
		}},
		{"another owner's lock is left alone", []step{
			{do: taken, args: "me 2 600000", reply: "-1", lock: "you=1", ttl: 60_000},
		}},
		{"another owner's lock without TTL is left alone", []step{
			{do: "HSET lock you 1", args: "me 2 60000", reply: "-1", lock: "you=1", ttl: -1},
		}},
		{"a lock that is kept after its release is nobody's", []step{
			{do: kept, args: "me 2 600000", reply: "-1", lock: "me:released=1", ttl: 60_000},
		}},
		{"a read-write lock of others is left alone", []step{
			{do: shared, args: "they 2 600000", reply: "-1", lock: "me=1 mode=read you=1", ttl: 60_000},
		}},
		{"a string is left alone", []step{
			{do: "SET lock text", args: "me 2 60000", reply: "!WRONGTYPE", lock: "'text", ttl: -1},
		}},
	}}.run(t)
}

func TestRelease(t *testing.T) {
	table{script: scripts.ReentrantRelease, keys: "lock", rows: []row{
		{"the lock is free and told once", []step{
			{do: held, args: "me channel PUBLISH 0", reply: "2", again: "0", heard: "PUBLISH"},
		}},
		{"it is told to the sharded channel", []step{
			{do: held, args: "me channel SPUBLISH 0", reply: "2", again: "0", heard: "SPUBLISH"},
		}},
		{"it is told to both channels", []step{
			{do: held, args: "me channel BOTH 0", reply: "3", again: "0", heard: "BOTH"},
		}},
		{"all nested holds are given back at once", []step{
			{do: "HSET lock me 3; PEXPIRE lock 60000", args: "me channel PUBLISH 0", reply: "2", again: "0", heard: "PUBLISH"},
		}},
		{"a lock without TTL is free", []step{
			{do: "HSET lock me 1", args: "me channel PUBLISH 0", reply: "2", again: "0", heard: "PUBLISH"},
		}},
		{"nobody's lock is told of to nobody", []step{
			{args: "me channel PUBLISH 0", reply: "0"},
		}},
		{"a stranger changes nothing", []step{
			{do: taken, args: "me channel PUBLISH 0", reply: "-1", lock: "you=1", ttl: 60_000},
			{args: "you channel PUBLISH 0", reply: "2", again: "0", heard: "PUBLISH"},
		}},
		{"a late copy after another took the lock changes nothing", []step{
			{do: held, args: "me channel PUBLISH 0", reply: "2", again: "0", heard: "PUBLISH"},
			{do: taken, args: "me channel PUBLISH 0", reply: "-1", lock: "you=1", ttl: 60_000},
		}},
		{"a read-write lock of others is left alone", []step{
			{do: shared, args: "they channel PUBLISH 0", reply: "-1", lock: "me=1 mode=read you=1", ttl: 60_000},
		}},
		{"a string is left alone", []step{
			{do: "SET lock text", args: "me channel PUBLISH 0", reply: "!WRONGTYPE", lock: "'text", ttl: -1},
			{args: "me channel PUBLISH 60000", reply: "!WRONGTYPE", lock: "'text", ttl: -1},
		}},

		// A lock that is kept is nobody's: a repeat finds nothing of the owner.
		{"a lock that is kept is so for as long as asked", []step{
			{do: "HSET lock me 1; PEXPIRE lock 600000", args: "me channel PUBLISH 60000", reply: "2", again: "-1", lock: "me:released=1", ttl: 60_000, heard: "PUBLISH"},
		}},
		{"also if that is longer than was left", []step{
			{do: held, args: "me channel PUBLISH 600000", reply: "2", again: "-1", lock: "me:released=1", ttl: 600_000, heard: "PUBLISH"},
		}},
		{"a lock without TTL, which would stay taken for ever, is kept for as long as asked", []step{
			{do: "HSET lock me 1", args: "me channel PUBLISH 60000", reply: "2", again: "-1", lock: "me:released=1", ttl: 60_000, heard: "PUBLISH"},
		}},
		{"a lock that is kept is told of to the sharded channel", []step{
			{do: held, args: "me channel SPUBLISH 600000", reply: "2", again: "-1", lock: "me:released=1", ttl: 600_000, heard: "SPUBLISH"},
		}},
		{"a lock that is kept is told of to both channels", []step{
			{do: held, args: "me channel BOTH 600000", reply: "3", again: "-1", lock: "me:released=1", ttl: 600_000, heard: "BOTH"},
		}},
		{"of all nested holds one mark is left", []step{
			{do: "HSET lock me 3; PEXPIRE lock 60000", args: "me channel PUBLISH 600000", reply: "2", again: "-1", lock: "me:released=1", ttl: 600_000, heard: "PUBLISH"},
		}},
		{"a late copy neither lifts nor lowers the TTL of a lock that is kept, nor frees it", []step{
			{do: held, args: "me channel PUBLISH 600000", reply: "2", again: "-1", lock: "me:released=1", ttl: 600_000, heard: "PUBLISH"},
			{args: "me channel PUBLISH 60000", reply: "-1", lock: "me:released=1", ttl: 600_000},
			{args: "me channel PUBLISH 0", reply: "-1", lock: "me:released=1", ttl: 600_000},
			{do: "PEXPIRE lock 60000", args: "me channel PUBLISH 600000", reply: "-1", lock: "me:released=1", ttl: 60_000},
		}},
		{"a late copy after a kept lock is over changes nothing", []step{
			{do: held, args: "me channel PUBLISH 600000", reply: "2", again: "-1", lock: "me:released=1", ttl: 600_000, heard: "PUBLISH"},
			{do: "DEL lock", args: "me channel PUBLISH 600000", reply: "0"},
			{do: taken, args: "me channel PUBLISH 600000", reply: "-1", lock: "you=1", ttl: 60_000},
		}},
		{"a stranger cannot have it kept", []step{
			{do: "HSET lock you 1; PEXPIRE lock 600000", args: "me channel PUBLISH 60000", reply: "-1", lock: "you=1", ttl: 600_000},
		}},
		{"nobody's lock is not kept", []step{
			{args: "me channel PUBLISH 60000", reply: "0"},
		}},
		{"a read-write lock of others is not kept", []step{
			{do: "HSET lock mode read you 1; PEXPIRE lock 600000", args: "me channel PUBLISH 60000", reply: "-1", lock: "mode=read you=1", ttl: 600_000},
		}},
	}}.run(t)
}

// Commands of the owner that come after a release that keeps the lock find
// nothing of the owner: they change nothing, and do not keep it for longer.
func TestRelease_lateCommandsOfTheOwnerFindNothing(t *testing.T) {
	rows := func(release step) (rows []row) {
		release.lock, release.ttl = "me:released=1", 60_000
		for _, late := range []struct {
			name string
			step step
		}{
			{"renew", step{script: scripts.ReentrantRenew, args: "me 600000", reply: "[-1]"}},
			{"count", step{script: scripts.ReentrantCount, args: "me 2 600000", reply: "-1"}},
			{"acquire", step{script: scripts.ReentrantAcquire, args: "me 600000", reply: "~60000"}},
			{"fenced acquire", step{script: scripts.ReentrantAcquireFenced, keys: "lock more", args: "me 600000 1 600000", reply: "~60000"}},
		} {
			s := late.step
			s.keys = cmp.Or(s.keys, "lock")
			s.lock, s.ttl, s.more, s.moreTTL = release.lock, release.ttl, release.more, release.moreTTL
			rows = append(rows, row{late.name, []step{release, s}})
		}
		return rows
	}
	for _, before := range []string{held, "HSET lock me 3; PEXPIRE lock 600000", "HSET lock me 1"} {
		t.Run(before, func(t *testing.T) {
			table{script: scripts.ReentrantRelease, keys: "lock", rows: rows(step{
				do: before, args: "me channel PUBLISH 60000", reply: "2", again: "-1", heard: "PUBLISH",
			})}.run(t)
		})
		t.Run(before+", with receipt", func(t *testing.T) {
			table{script: scripts.ReentrantReleaseReceipt, keys: "lock more", rows: rows(step{
				do: before, args: "me channel PUBLISH 60000 7 60000", reply: "2", again: "1", more: "'7", moreTTL: 60_000, heard: "PUBLISH",
			})}.run(t)
		})
	}
}

func TestReleaseReceipt(t *testing.T) {
	table{script: scripts.ReentrantReleaseReceipt, keys: "lock more", rows: []row{
		{"the lock is free, told once, and a repeat answers that it is released", []step{
			{do: held, args: "me channel PUBLISH 0 7 60000", reply: "2", again: "1", more: "'7", moreTTL: 60_000, heard: "PUBLISH"},
		}},
		{"it is told to the sharded channel", []step{
			{do: held, args: "me channel SPUBLISH 0 7 60000", reply: "2", again: "1", more: "'7", moreTTL: 60_000, heard: "SPUBLISH"},
		}},
		{"it is told to both channels", []step{
			{do: held, args: "me channel BOTH 0 7 60000", reply: "3", again: "1", more: "'7", moreTTL: 60_000, heard: "BOTH"},
		}},
		{"a repeat is exact after another owner took the lock", []step{
			{do: held, args: "me channel PUBLISH 0 7 60000", reply: "2", again: "1", more: "'7", moreTTL: 60_000, heard: "PUBLISH"},
			{do: taken, args: "me channel PUBLISH 0 7 60000", reply: "1", lock: "you=1", ttl: 60_000, more: "'7", moreTTL: 60_000},
		}},
		{"a repeat of an older release is exact", []step{
			{do: held, args: "me channel PUBLISH 0 7 60000", reply: "2", again: "1", more: "'7", moreTTL: 60_000, heard: "PUBLISH"},
			{do: "HSET lock me2 1; PEXPIRE lock 60000", args: "me2 channel PUBLISH 0 9 60000", reply: "2", again: "1", more: "'9", moreTTL: 60_000, heard: "PUBLISH"},
			{args: "me channel PUBLISH 0 7 60000", reply: "1", more: "'9", moreTTL: 60_000},
		}},
		{"a later sequence than the receipt was not released", []step{
			{do: "SET more 7 PX 60000", args: "me channel PUBLISH 0 8 600000", reply: "0", more: "'7", moreTTL: 60_000},
			{do: taken, args: "me channel PUBLISH 0 8 600000", reply: "-1", lock: "you=1", ttl: 60_000, more: "'7", moreTTL: 60_000},
		}},
		{"sequences compare as numbers", []step{
			{do: held + "; SET more 9 PX 60000", args: "me channel PUBLISH 0 10 60000", reply: "2", again: "1", more: "'10", moreTTL: 60_000, heard: "PUBLISH"},
		}},
		{"the release of an older sequence leaves a newer receipt", []step{
			{do: held + "; SET more 9 PX 60000", args: "me channel PUBLISH 0 7 600000", reply: "2", again: "1", more: "'9", moreTTL: 60_000, heard: "PUBLISH"},
		}},
		{"a newer receipt is kept for as long as it says", []step{
			{do: held + "; SET more 5 PX 60000", args: "me channel PUBLISH 0 7 600000", reply: "2", again: "1", more: "'7", moreTTL: 600_000, heard: "PUBLISH"},
		}},
		{"nobody's lock is told of to nobody and leaves no receipt", []step{
			{args: "me channel PUBLISH 0 7 60000", reply: "0"},
		}},
		{"a stranger changes nothing and leaves no receipt", []step{
			{do: taken, args: "me channel PUBLISH 0 7 60000", reply: "-1", lock: "you=1", ttl: 60_000},
		}},
		{"a read-write lock of others is left alone", []step{
			{do: shared, args: "they channel PUBLISH 0 7 60000", reply: "-1", lock: "me=1 mode=read you=1", ttl: 60_000},
		}},
		{"a string is left alone", []step{
			{do: "SET lock text", args: "me channel PUBLISH 0 7 60000", reply: "!WRONGTYPE", lock: "'text", ttl: -1},
		}},
		{"a lock that is kept is so for as long as asked", []step{
			{do: "HSET lock me 1; PEXPIRE lock 600000", args: "me channel PUBLISH 60000 7 60000", reply: "2", again: "1", lock: "me:released=1", ttl: 60_000, more: "'7", moreTTL: 60_000, heard: "PUBLISH"},
		}},
		{"also if that is longer than was left", []step{
			{do: held, args: "me channel PUBLISH 600000 7 60000", reply: "2", again: "1", lock: "me:released=1", ttl: 600_000, more: "'7", moreTTL: 60_000, heard: "PUBLISH"},
		}},
		{"a lock without TTL, which would stay taken for ever, is kept for as long as asked", []step{
			{do: "HSET lock me 1", args: "me channel PUBLISH 60000 7 60000", reply: "2", again: "1", lock: "me:released=1", ttl: 60_000, more: "'7", moreTTL: 60_000, heard: "PUBLISH"},
		}},
		{"a lock that is kept is told of to the sharded channel", []step{
			{do: held, args: "me channel SPUBLISH 600000 7 60000", reply: "2", again: "1", lock: "me:released=1", ttl: 600_000, more: "'7", moreTTL: 60_000, heard: "SPUBLISH"},
		}},
		{"a lock that is kept is told of to both channels", []step{
			{do: held, args: "me channel BOTH 600000 7 60000", reply: "3", again: "1", lock: "me:released=1", ttl: 600_000, more: "'7", moreTTL: 60_000, heard: "BOTH"},
		}},
		{"of all nested holds one mark is left", []step{
			{do: "HSET lock me 3; PEXPIRE lock 60000", args: "me channel PUBLISH 600000 7 60000", reply: "2", again: "1", lock: "me:released=1", ttl: 600_000, more: "'7", moreTTL: 60_000, heard: "PUBLISH"},
		}},
		{"a late copy neither lifts nor lowers the TTL of a lock that is kept, nor frees it", []step{
			{do: held, args: "me channel PUBLISH 600000 7 60000", reply: "2", again: "1", lock: "me:released=1", ttl: 600_000, more: "'7", moreTTL: 60_000, heard: "PUBLISH"},
			{args: "me channel PUBLISH 60000 7 600000", reply: "1", lock: "me:released=1", ttl: 600_000, more: "'7", moreTTL: 60_000},
			{args: "me channel PUBLISH 0 7 600000", reply: "1", lock: "me:released=1", ttl: 600_000, more: "'7", moreTTL: 60_000},
			{do: "PEXPIRE lock 60000", args: "me channel PUBLISH 600000 7 600000", reply: "1", lock: "me:released=1", ttl: 60_000, more: "'7", moreTTL: 60_000},
		}},
		{"a repeat is not exact without its receipt", []step{
			{do: held, args: "me channel PUBLISH 600000 7 60000", reply: "2", again: "1", lock: "me:released=1", ttl: 600_000, more: "'7", moreTTL: 60_000, heard: "PUBLISH"},
			{do: "DEL more", args: "me channel PUBLISH 600000 7 60000", reply: "-1", lock: "me:released=1", ttl: 600_000},
		}},
		{"a repeat is exact after a kept lock is over", []step{
			{do: held, args: "me channel PUBLISH 600000 7 60000", reply: "2", again: "1", lock: "me:released=1", ttl: 600_000, more: "'7", moreTTL: 60_000, heard: "PUBLISH"},
			{do: "DEL lock", args: "me channel PUBLISH 600000 7 60000", reply: "1", more: "'7", moreTTL: 60_000},
			{do: taken, args: "me channel PUBLISH 600000 7 60000", reply: "1", lock: "you=1", ttl: 60_000, more: "'7", moreTTL: 60_000},
		}},
		{"a stranger cannot have it kept", []step{
			{do: "HSET lock you 1; PEXPIRE lock 600000", args: "me channel PUBLISH 60000 7 60000", reply: "-1", lock: "you=1", ttl: 600_000},
		}},
	}}.run(t)
}

// A script that fails half done would tell its caller that nothing happened, and
// the waiters nothing at all. So the receipt comes before anything else.
func TestReleaseReceipt_aForeignReceiptIsNoHalfRelease(t *testing.T) {
	for _, c := range []struct{ what, set, more, reply string }{
		{"no number", "SET more text PX 60000", "'text", "!WRONGTYPE the receipt is no number"},
		{"a list", "RPUSH more a; PEXPIRE more 60000", "list", "!WRONGTYPE"},
		{"a hash", "HSET more a 1; PEXPIRE more 60000", "a=1", "!WRONGTYPE"},
	} {
		var rows []row
		for _, lock := range []struct {
			name, do, state string
			ttl             int
		}{
			{"held", held, "me=1", 60_000},
			{"held without TTL", "HSET lock me 1", "me=1", -1},
			{"free", "", "", 0},
			{"another's", taken, "you=1", 60_000},
			{"kept", kept, "me:released=1", 60_000},
			{"other data", "SET lock text", "'text", -1},
		} {
			var steps []step
			for _, args := range []string{"me channel PUBLISH 0 7 600000", "me channel PUBLISH 600000 7 600000"} {
				steps = append(steps, step{args: args, reply: c.reply, lock: lock.state, ttl: lock.ttl, more: c.more, moreTTL: 60_000})
			}
			steps[0].do = strings.TrimPrefix(lock.do+"; "+c.set, "; ")
			rows = append(rows, row{lock.name, steps})
		}
		t.Run(c.what, func(t *testing.T) {
			table{script: scripts.ReentrantReleaseReceipt, keys: "lock more", rows: rows}.run(t)
		})
	}
}

func TestInfo(t *testing.T) {
	table{script: scripts.ReentrantInfo, keys: "lock", rows: []row{
		{"a free lock", []step{{reply: "[-2]"}}},
		{"a held lock", []step{{do: "HSET lock me 3; PEXPIRE lock 60000", reply: "[~60000 me 3]", lock: "me=3", ttl: 60_000}}},
		{"a lock without TTL", []step{{do: "HSET lock me 1", reply: "[-1 me 1]", lock: "me=1", ttl: -1}}},
		{"a lock that is kept after its release", []step{{do: kept, reply: "[~60000 me:released 1]", lock: "me:released=1", ttl: 60_000}}},
		{"another hash", []step{{do: "HSET lock name text", reply: "[-1 name text]", lock: "name=text", ttl: -1}}},
		{"a read-write lock", []step{{do: shared, reply: "!WRONGTYPE", lock: "me=1 mode=read you=1", ttl: 60_000}}},
		{"a field named mode that comes last", []step{{do: "HSET lock me 1; HSET lock mode read", reply: "!WRONGTYPE", lock: "me=1 mode=read", ttl: -1}}},
		{"a value named mode is no read-write lock", []step{{do: "HSET lock me mode", reply: "[-1 me mode]", lock: "me=mode", ttl: -1}}},
		{"a string", []step{{do: "SET lock text", reply: "!WRONGTYPE", lock: "'text", ttl: -1}}},
		{"a list", []step{{do: "RPUSH lock a", reply: "!WRONGTYPE", lock: "list", ttl: -1}}},
	}}.run(t)
}

func TestForce(t *testing.T) {
	table{script: scripts.ReentrantForce, keys: "lock", rows: []row{
		{"whoever's lock is removed and told once", []step{
			{do: "HSET lock you 3; PEXPIRE lock 60000", args: "channel PUBLISH", reply: "1", again: "0", heard: "PUBLISH"},
		}},
		{"it is told to the sharded channel", []step{
			{do: taken, args: "channel SPUBLISH", reply: "1", again: "0", heard: "SPUBLISH"},
		}},
		{"it is told to both channels", []step{
			{do: taken, args: "channel BOTH", reply: "1", again: "0", heard: "BOTH"},
		}},
		{"a lock without TTL is removed", []step{
			{do: "HSET lock you 1", args: "channel PUBLISH", reply: "1", again: "0", heard: "PUBLISH"},
		}},
		{"a lock that is kept after its release is removed", []step{
			{do: kept, args: "channel PUBLISH", reply: "1", again: "0", heard: "PUBLISH"},
		}},
		{"a free lock is told of to nobody", []step{
			{args: "channel PUBLISH", reply: "0"},
		}},
		{"a read-write lock is left alone", []step{
			{do: shared, args: "channel PUBLISH", reply: "!WRONGTYPE", lock: "me=1 mode=read you=1", ttl: 60_000},
		}},
		{"a string is left alone", []step{
			{do: "SET lock text", args: "channel PUBLISH", reply: "!WRONGTYPE", lock: "'text", ttl: -1},
		}},
		{"a list is left alone", []step{
			{do: "RPUSH lock a", args: "channel BOTH", reply: "!WRONGTYPE", lock: "list", ttl: -1},
		}},
		{"a set is left alone", []step{
			{do: "SADD lock a", args: "channel PUBLISH", reply: "!WRONGTYPE", lock: "{a}", ttl: -1},
		}},
		{"a sorted set is left alone", []step{
			{do: "ZADD lock 1 a", args: "channel PUBLISH", reply: "!WRONGTYPE", lock: "<a>", ttl: -1},
		}},
	}}.run(t)
}

// The header says so: this is the one script that is never sent again.
func TestForce_aRepeatRemovesTheNextOwnersLock(t *testing.T) {
	table{script: scripts.ReentrantForce, keys: "lock", rows: []row{{"", []step{
		{do: held, args: "channel PUBLISH", reply: "1", again: "0", heard: "PUBLISH"},
		{do: taken, args: "channel PUBLISH", reply: "1", again: "0", heard: "PUBLISH"},
	}}}}.run(t)
}

// One key: the same rows as of every other script. Many keys follow.
func TestRenew(t *testing.T) {
	table{script: scripts.ReentrantRenew, keys: "lock", rows: []row{
		{"the TTL is lifted to the lease", []step{
			{do: held, args: "me 600000", reply: "[1]", lock: "me=1", ttl: 600_000},
		}},
		{"the TTL is never lowered", []step{
			{do: "HSET lock me 2; PEXPIRE lock 600000", args: "me 60000", reply: "[1]", lock: "me=2", ttl: 600_000},
		}},
		{"a lock without TTL gets the lease", []step{
			{do: "HSET lock me 1", args: "me 60000", reply: "[1]", lock: "me=1", ttl: 60_000},
		}},
		{"nobody's lock is not created", []step{
			{args: "me 60000", reply: "[0]"},
		}},
		{"a lock that was lost is not renewed for the next owner", []step{
			{do: held, args: "me 60000", reply: "[1]", lock: "me=1", ttl: 60_000},
			{do: "DEL lock", args: "me 60000", reply: "[0]"},
			{do: taken, args: "me 600000", reply: "[-1]", lock: "you=1", ttl: 60_000},
		}},
		{"another owner's lock without TTL is left alone", []step{
			{do: "HSET lock you 1", args: "me 60000", reply: "[-1]", lock: "you=1", ttl: -1},
		}},
		{"a lock that is kept after its release is nobody's", []step{
			{do: kept, args: "me 600000", reply: "[-1]", lock: "me:released=1", ttl: 60_000},
		}},
		{"a read-write lock of others is left alone", []step{
			{do: shared, args: "they 600000", reply: "[-1]", lock: "me=1 mode=read you=1", ttl: 60_000},
		}},
	}}.run(t)
	table{script: scripts.ReentrantRenew, keys: "lock more", rows: []row{
		{"each key has its own owner and lease", []step{
			{
				do: held + "; HSET more you 1; PEXPIRE more 60000", args: "me you 600000 900000",
				reply: "[1 1]", lock: "me=1", ttl: 600_000, more: "you=1", moreTTL: 900_000,
			},
		}},
		{"each key has its own verdict", []step{
			{
				do: held + "; HSET more you 1; PEXPIRE more 60000", args: "me me 600000 900000",
				reply: "[1 -1]", lock: "me=1", ttl: 600_000, more: "you=1", moreTTL: 60_000,
			},
		}},
		{"the first is lost and the second is renewed", []step{
			{
				do: "HSET more you 1; PEXPIRE more 60000", args: "me you 600000 900000",
				reply: "[0 1]", more: "you=1", moreTTL: 900_000,
			},
		}},
	}}.run(t)
}

func TestRenew_oneBadKeyCostsTheOthersNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		set := []string{"HSET lock me 1; PEXPIRE lock 60000", "SET lock text", "", "HSET lock you 1; PEXPIRE lock 60000", "RPUSH lock a", "HSET lock me 1; PEXPIRE lock 600000", shared}
		var keys, owners, leases []string
		for i, commands := range set {
			key := fmt.Sprint(name(t), ":", i)
			b.do(t, map[string]string{"lock": key}, commands)
			keys, owners, leases = append(keys, key), append(owners, "me"), append(leases, "120000")
		}
		owners[6] = "they"
		for range 2 {
			reply, err := scripts.ReentrantRenew.Exec(t.Context(), b.client, keys, append(owners, leases...)).ToArray()
			require.NoError(t, err)
			require.Len(t, reply, len(set))
			for i, want := range []string{"1", "WRONGTYPE", "0", "-1", "WRONGTYPE", "1", "-1"} {
				if want == "WRONGTYPE" {
					require.True(t, reply[i].IsString(), "an error is a text")
					text, err := reply[i].ToString()
					require.NoError(t, err)
					require.True(t, strings.HasPrefix(text, want), text)
					continue
				}
				n, err := reply[i].ToInt64()
				require.NoError(t, err)
				require.Equal(t, want, fmt.Sprint(n), "key %d", i)
			}
			for i, ttl := range []int{120_000, -1, 0, 60_000, -1, 600_000, 60_000} {
				b.requireTTL(t, keys[i], ttl)
			}
		}
		for i, state := range []string{"me=1", "'text", "", "you=1", "list", "me=1", "me=1 mode=read you=1"} {
			require.Equal(t, state, b.state(t, keys[i]))
		}
	})
}

func TestRenew_aHundredKeysInOneScript(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		const n = 100
		var keys, owners, leases []string
		for i := range n {
			key := fmt.Sprint(name(t), ":", i)
			b.do(t, map[string]string{"lock": key}, fmt.Sprintf("HSET lock owner%d 1; PEXPIRE lock 60000", i))
			keys, owners, leases = append(keys, key), append(owners, fmt.Sprint("owner", i)), append(leases, fmt.Sprint(600_000+100_000*i))
		}
		verdicts, err := scripts.ReentrantRenew.Exec(t.Context(), b.client, keys, append(owners, leases...)).AsIntSlice()
		require.NoError(t, err)
		require.Len(t, verdicts, n)
		for i, verdict := range verdicts {
			require.EqualValues(t, 1, verdict)
			b.requireTTL(t, keys[i], 600_000+100_000*i)
		}
	})
}

func TestRenew_noKeysNoVerdicts(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		require.Equal(t, "[]", text(scripts.ReentrantRenew.Exec(t.Context(), b.client, nil, nil)))
	})
}

func TestFenceGuard(t *testing.T) {
	// The body says what it is given, and writes.
	body := "redis.call('SET', KEYS[1], ARGV[1])\nreturn { #KEYS, #ARGV, ARGV[1], ARGV[2] or 'none' }\n"
	table{script: scripts.New("guarded", scripts.FenceGuard+body), keys: "lock more", rows: []row{
		{"the first token passes and the body sees its own keys and arguments", []step{
			{args: "33 a", reply: "[1 1 a none]", lock: "'33", ttl: -1, more: "'a", moreTTL: -1},
		}},
		{"all arguments are shifted", []step{
			{args: "33 a b", reply: "[1 2 a b]", lock: "'33", ttl: -1, more: "'a", moreTTL: -1},
		}},
		{"several writes of one hold pass", []step{
			{args: "33 a", reply: "[1 1 a none]", lock: "'33", ttl: -1, more: "'a", moreTTL: -1},
			{args: "33 b", reply: "[1 1 b none]", lock: "'33", ttl: -1, more: "'b", moreTTL: -1},
		}},
		{"a newer token passes and an older one does not, ever after", []step{
			{args: "33 a", reply: "[1 1 a none]", lock: "'33", ttl: -1, more: "'a", moreTTL: -1},
			{args: "34 b", reply: "[1 1 b none]", lock: "'34", ttl: -1, more: "'b", moreTTL: -1},
			{args: "33 c", reply: "!STALETOKEN token 33 is older than 34", lock: "'34", ttl: -1, more: "'b", moreTTL: -1},
			{args: "35 d", reply: "[1 1 d none]", lock: "'35", ttl: -1, more: "'d", moreTTL: -1},
		}},
		{"0 never passes", []step{
			{args: "0 a", reply: "!STALETOKEN token 0 is older than 1"},
			{args: "000 a", reply: "!STALETOKEN token 000 is older than 1"},
			{args: "- a", reply: "!STALETOKEN"},
			{do: "SET lock 0", args: "0 a", reply: "!STALETOKEN", lock: "'0", ttl: -1},
			{do: "SET lock 7", args: "0 a", reply: "!STALETOKEN token 0 is older than 7", lock: "'7", ttl: -1},
		}},
		{"longer is larger", []step{
			{args: "9 a", reply: "[1 1 a none]", lock: "'9", ttl: -1, more: "'a", moreTTL: -1},
			{args: "10 b", reply: "[1 1 b none]", lock: "'10", ttl: -1, more: "'b", moreTTL: -1},
			{args: "9 c", reply: "!STALETOKEN token 9 is older than 10", lock: "'10", ttl: -1, more: "'b", moreTTL: -1},
		}},
		{"tokens above 2^53 compare exactly", []step{
			{args: "9007199254740993 a", reply: "[1 1 a none]", lock: "'9007199254740993", ttl: -1, more: "'a", moreTTL: -1},
			{args: "9007199254740992 b", reply: "!STALETOKEN", lock: "'9007199254740993", ttl: -1, more: "'a", moreTTL: -1},
			{args: "9007199254740994 c", reply: "[1 1 c none]", lock: "'9007199254740994", ttl: -1, more: "'c", moreTTL: -1},
		}},
		{"tokens up to 2^64-1 compare exactly", []step{
			{args: "9223372036854775808 a", reply: "[1 1 a none]", lock: "'9223372036854775808", ttl: -1, more: "'a", moreTTL: -1},
			{args: "9223372036854775807 b", reply: "!STALETOKEN", lock: "'9223372036854775808", ttl: -1, more: "'a", moreTTL: -1},
			{args: "18446744073709551614 c", reply: "[1 1 c none]", lock: "'18446744073709551614", ttl: -1, more: "'c", moreTTL: -1},
			{args: "18446744073709551615 d", reply: "[1 1 d none]", lock: "'18446744073709551615", ttl: -1, more: "'d", moreTTL: -1},
			{args: "18446744073709551614 e", reply: "!STALETOKEN", lock: "'18446744073709551615", ttl: -1, more: "'d", moreTTL: -1},
		}},
		{"leading zeros count for nothing", []step{
			{args: "0033 a", reply: "[1 1 a none]", lock: "'33", ttl: -1, more: "'a", moreTTL: -1},
			{args: "00000032 b", reply: "!STALETOKEN token 00000032 is older than 33", lock: "'33", ttl: -1, more: "'a", moreTTL: -1},
			{do: "SET lock 00034", args: "33 c", reply: "!STALETOKEN token 33 is older than 34", lock: "'00034", ttl: -1, more: "'a", moreTTL: -1},
			{args: "35 d", reply: "[1 1 d none]", lock: "'35", ttl: -1, more: "'d", moreTTL: -1},
		}},
		{"a fence that was lost lets any token pass", []step{
			{args: "33 a", reply: "[1 1 a none]", lock: "'33", ttl: -1, more: "'a", moreTTL: -1},
			{do: "DEL lock", args: "32 b", reply: "[1 1 b none]", lock: "'32", ttl: -1, more: "'b", moreTTL: -1},
		}},
		{"a fence of a wrong type lets nothing pass", []step{
			{do: "RPUSH lock a", args: "33 a", reply: "!WRONGTYPE", lock: "list", ttl: -1},
		}},
		{"a write that fails raises the fence all the same", []step{
			{do: "DEL lock", args: "33", reply: "!", lock: "'33", ttl: -1},
		}},
	}}.run(t)
}

// A counter that is used all the time is kept all the time: the first token of each
// 64th of its retention gives it a fresh TTL, however short a while ago the last was.
func TestAcquireFenced_steadyUseKeepsTheCounter(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		const retention, part = 600_000, 600_000 * 1000 / 64 // milliseconds, microseconds
		key, counter := name(t), name(t)+":tokens"
		last := b.micros(t)/part*part - 1 // the end of the 64th before this one
		require.NoError(t, b.raw(t, "SET", counter, strconv.FormatInt(last, 10), "PX", "60000").Error())
		reply := scripts.ReentrantAcquireFenced.Exec(t.Context(), b.client,
			[]string{key, counter}, []string{"me", "60000", "1", strconv.Itoa(retention)})
		require.NoError(t, reply.Error())
		b.requireTTL(t, counter, retention)
	})
}

// The clock's two numbers make one of sixteen digits.
func TestAcquireFenced_aTokenIsTheTimeInMicroseconds(t *testing.T) {
	client := redistest.Run(t).Client(t)
	for micros, token := range map[string]string{"7": "1700000000000007", "123456": "1700000000123456", "0": "1700000000000000", "99999": "1700000000099999"} {
		keys := []string{"lock" + micros, "token" + micros}
		args := []string{"1700000000", micros, "me", "60000", "1", "-1"}
		got, err := at(scripts.ReentrantAcquireFenced).Exec(t.Context(), client, keys, args).ToString()
		require.NoError(t, err)
		require.Equal(t, token, got)
	}
}
