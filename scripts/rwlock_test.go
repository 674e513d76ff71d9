package scripts_test

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/scripts"
)

// The states that rows begin in. A word of a writer that it waits ends a minute from
// now, or did so before the clock began.
const (
	reading  = "HSET lock mode read me 1; PEXPIRE lock 60000; SET hold 1 PX 60000"
	readers2 = "HSET lock mode read me 1 you 1; PEXPIRE lock 60000; SET hold 1 PX 60000; SET hold2 1 PX 60000"
	writing  = "HSET lock mode write me:write 1; PEXPIRE lock 60000"
	theirs   = "HSET lock mode write you:write 1; PEXPIRE lock 60000"
	keptRW   = "HSET lock mode write me:write:released 1; PEXPIRE lock 60000"
	waits    = "ZADD writers SOON w1; PEXPIRE writers 60000"
	waited   = "ZADD writers 1000 w1; PEXPIRE writers 60000"
)

// rwNames are what the words of an rwTable stand for.
var rwNames = []string{"lock", "hold", "hold2", "writers", "readers", "turn", "token", "channel"}

// An rwTable is what one script of the read-write lock does, row by row; see table.
type rwTable struct {
	script *scripts.Script
	keys   string
	rows   []rwRow
}

type rwRow struct {
	name  string
	steps []rwStep
}

// An rwStep is one call, and the same call again.
type rwStep struct {
	script *scripts.Script // if it is not the table's
	keys   string          // of that script

	do    string // raw commands before the call
	args  string
	reply string // see step
	again string // the reply to the repeat, unless it is the same

	// What there is after the call, and after the repeat: "key: what it holds ~TTL",
	// separated by "; ". "~-1" is no end.
	state      string
	heard      string
	heardAgain string
}

func (tb rwTable) run(t *testing.T) {
	t.Helper()
	for _, r := range tb.rows {
		t.Run(r.name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, b *backend) { tb.row(t, b, r) })
		})
	}
}

func (tb rwTable) row(t *testing.T, b *backend, r rwRow) {
	t.Helper()
	names := map[string]string{}
	for _, n := range rwNames {
		names[n] = name(t) + ":" + n
	}
	for _, s := range r.steps {
		if b.simulated && (strings.Contains(s.args, "SPUBLISH") || strings.Contains(s.args, "BOTH")) {
			t.Skip("miniredis has no sharded channels: it knows neither SPUBLISH nor SSUBSCRIBE")
		}
	}
	names["SOON"] = strconv.FormatInt(b.micros(t)/1000+60_000, 10)
	ear := b.listen(t, names["channel"])
	var token int64
	for i, s := range r.steps {
		script, keys := cmp.Or(s.script, tb.script), expand(names, cmp.Or(s.keys, tb.keys))
		b.do(t, names, s.do)
		call := func(reply, heard, what string) {
			t.Helper()
			from := b.micros(t)
			got := text(script.Exec(t.Context(), b.client, keys, expand(names, s.args)))
			upto := b.micros(t)
			what = fmt.Sprintf("step %d%s: %s %s: got %s", i+1, what, script.Name(), s.args, got)
			b.requireReply(t, reply, got, &token, from, upto, what)
			b.requireRW(t, names, s.state, token, what)
			require.Equal(t, heard, ear.heard(t), what)
		}
		call(s.reply, s.heard, "")
		call(cmp.Or(s.again, s.reply), s.heardAgain, ", repeated")
	}
}

// plain is a value, or the error instead.
func plain[T any](v T, err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(v)
}

// requireRW checks all keys of a row.
func (b *backend) requireRW(t *testing.T, names map[string]string, state string, token int64, what string) {
	t.Helper()
	want, ttl := map[string]string{}, map[string]int{}
	for part := range strings.SplitSeq(state, "; ") {
		if part == "" {
			continue
		}
		key, rest, ok := strings.Cut(part, ": ")
		require.True(t, ok, part)
		content, left, ok := strings.Cut(rest, " ~")
		require.True(t, ok, part)
		n, err := strconv.Atoi(left)
		require.NoError(t, err)
		want[key], ttl[key] = content, n
	}
	for _, key := range rwNames[:len(rwNames)-1] {
		have := b.state(t, names[key])
		if strings.HasPrefix(want[key], "@") {
			have = strings.TrimPrefix(mark(have, want[key], token), "'")
		}
		require.Equal(t, want[key], have, "%s: %s", key, what)
		b.requireTTL(t, names[key], ttl[key])
	}
}

func TestRwlockReadAcquire(t *testing.T) {
	const free = "me 60000 - s 0 1 0" // its arguments: it does not wait, stands back, is the last
	rwTable{script: scripts.RwlockReadAcquire, keys: "lock hold writers readers turn", rows: []rwRow{
		{"a free lock lets a reader in and a repeat answers as the first did", []rwStep{
			{args: free, reply: "-2", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"},
		}},
		{"readers read together", []rwStep{
			{args: free, reply: "-2", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"},
			{
				args: "you 60000 - s2 0 1 0", keys: "lock hold2 writers readers turn", reply: "-2",
				state: "lock: me=1 mode=read you=1 ~60000; hold: '1 ~60000; hold2: '1 ~60000",
			},
		}},
		{"a short lease does not cut a long one", []rwStep{
			{args: "me 600000 - s 0 1 0", reply: "-2", state: "lock: me=1 mode=read ~600000; hold: '1 ~600000"},
			{
				args: "you 60000 - s2 0 1 0", keys: "lock hold2 writers readers turn", reply: "-2",
				state: "lock: me=1 mode=read you=1 ~600000; hold: '1 ~600000; hold2: '1 ~60000",
			},
		}},
		{"a long lease lengthens that of the lock", []rwStep{
			{do: reading, args: "you 600000 - s2 0 1 0", keys: "lock hold2 writers readers turn", reply: "-2", state: "lock: me=1 mode=read you=1 ~600000; hold: '1 ~60000; hold2: '1 ~600000"},
		}},
		{"a writer keeps readers out", []rwStep{
			{do: theirs, args: free, reply: "~60000", state: "lock: mode=write you:write=1 ~60000"},
		}},
		{"who waits is noted until after it was told to ask again", []rwStep{
			{do: theirs, args: "me 60000 - s 1 1 0", reply: "~60000", state: "lock: mode=write you:write=1 ~60000; readers: {s} ~61000"},
			{args: "you 60000 - s2 1 1 0", reply: "~60000", state: "lock: mode=write you:write=1 ~60000; readers: {s s2} ~61000"},
			{do: "PEXPIRE readers 600000", args: "me 60000 - s 1 1 0", reply: "~60000", state: "lock: mode=write you:write=1 ~60000; readers: {s s2} ~600000"},
		}},
		{"a lock without TTL has no end and who waits is noted for a while", []rwStep{
			{do: "HSET lock mode write you:write 1", args: "me 60000 - s 1 1 0", reply: "-1", state: "lock: mode=write you:write=1 ~-1; readers: {s} ~6000"},
		}},
		{"a kept lock is a writer's", []rwStep{
			{do: keptRW, args: free, reply: "~60000", state: "lock: me:write:released=1 mode=write ~60000"},
		}},
		{"a reader stands back for a writer that waits", []rwStep{
			{do: reading + "; " + waits, args: "you 60000 - s2 0 1 0", reply: "~60000", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000; writers: <w1> ~60000"},
			{args: "you 60000 - s2 1 1 0", reply: "~60000", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000; writers: <w1> ~60000; readers: {s2} ~61000"},
		}},
		{"also when the lock is free", []rwStep{
			{do: waits, args: free, reply: "~60000", state: "writers: <w1> ~60000"},
		}},
		{"and is told the sooner of the two ends", []rwStep{
			{do: "HSET lock mode read you 1; PEXPIRE lock 30000; " + waits, args: "me 60000 - s 0 1 0", reply: "~30000", state: "lock: mode=read you=1 ~30000; writers: <w1> ~60000"},
			{do: "PEXPIRE lock 600000", args: "me 60000 - s 0 1 0", reply: "~60000", state: "lock: mode=read you=1 ~600000; writers: <w1> ~60000"},
			{do: "PERSIST lock", args: "me 60000 - s 0 1 0", reply: "~60000", state: "lock: mode=read you=1 ~-1; writers: <w1> ~60000"},
		}},
		{"the last of several writers counts", []rwStep{
			{do: waited + "; ZADD writers SOON w2", args: free, reply: "~60000", state: "writers: <w1 w2> ~60000"},
		}},
		{"a writer whose word has ended holds nobody up", []rwStep{
			{do: waited, args: free, reply: "-2", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000; writers: <w1> ~60000"},
		}},
		{"unless readers come first", []rwStep{
			{do: waits, args: "me 60000 - s 0 0 0", reply: "-2", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000; writers: <w1> ~60000"},
		}},
		{"or it is this session's turn", []rwStep{
			{
				do: waits + "; SADD turn s s3; PEXPIRE turn 60000; SADD readers s s2; PEXPIRE readers 60000", args: free, reply: "-2",
				again: "-2", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000; writers: <w1> ~60000; readers: {s2} ~60000; turn: {s3} ~60000",
			},
			{args: "you 60000 - s2 0 1 0", keys: "lock hold2 writers readers turn", reply: "~60000", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000; writers: <w1> ~60000; readers: {s2} ~60000; turn: {s3} ~60000"},
			{args: "you 60000 - s3 0 1 0", keys: "lock hold2 writers readers turn", reply: "-2", state: "lock: me=1 mode=read you=1 ~60000; hold: '1 ~60000; hold2: '1 ~60000; writers: <w1> ~60000; readers: {s2} ~60000"},
		}},
		{"the turn stays while others of the session wait", []rwStep{
			{
				do: waits + "; SADD turn s; PEXPIRE turn 60000; SADD readers s; PEXPIRE readers 60000", args: "me 60000 - s 0 1 1", reply: "-2",
				state: "lock: me=1 mode=read ~60000; hold: '1 ~60000; writers: <w1> ~60000; readers: {s} ~60000; turn: {s} ~60000",
			},
		}},
		{"a turn does not open a writer's lock", []rwStep{
			{do: theirs + "; SADD turn s; PEXPIRE turn 60000", args: free, reply: "~60000", state: "lock: mode=write you:write=1 ~60000; turn: {s} ~60000"},
		}},
		{"a writer's own reader comes in", []rwStep{
			{
				do: writing + "; " + waits + "; SADD turn s; PEXPIRE turn 60000", args: "mine 600000 me:write s 1 1 0", reply: "-2",
				state: "lock: me:write=1 mine=1 mode=write ~600000; hold: '1 ~600000; writers: <w1> ~60000; turn: {s} ~60000",
			},
		}},
		{"but not when the writer has lost the lock", []rwStep{
			{args: "mine 60000 me:write s 1 1 0", reply: "-3"},
			{do: theirs, args: "mine 60000 me:write s 1 1 0", reply: "-3", state: "lock: mode=write you:write=1 ~60000"},
			{do: "DEL lock; " + reading, args: "mine 60000 me:write s 1 1 0", keys: "lock hold2 writers readers turn", reply: "-3", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"},
			{do: "DEL lock hold; " + keptRW, args: "mine 60000 me:write s 1 1 0", reply: "-3", state: "lock: me:write:released=1 mode=write ~60000"},
		}},
		{"a repeat lifts TTLs and never lowers them", []rwStep{
			{do: reading, args: "me 600000 - s 0 1 0", reply: "-2", state: "lock: me=1 mode=read ~600000; hold: '1 ~600000"},
			{args: "me 60000 - s 0 1 0", reply: "-2", state: "lock: me=1 mode=read ~600000; hold: '1 ~600000"},
		}},
		{"a repeat is not held up by a writer that waits", []rwStep{
			{do: reading + "; " + waits, args: free, reply: "-2", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000; writers: <w1> ~60000"},
		}},
		{"a repeat makes the key of a hold anew that has just ended", []rwStep{
			{do: reading + "; DEL hold", args: free, reply: "-2", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"},
		}},
		{"a repeat finds a writer's own reader too", []rwStep{
			{do: "HSET lock mode write me:write 1 mine 1; PEXPIRE lock 60000; SET hold 1 PX 60000", args: "mine 60000 me:write s 0 1 0", reply: "-2", state: "lock: me:write=1 mine=1 mode=write ~60000; hold: '1 ~60000"},
		}},
		{"Java's count stays", []rwStep{
			{do: "HSET lock mode read java:7 2; PEXPIRE lock 60000", args: free, reply: "-2", state: "lock: java:7=2 me=1 mode=read ~60000; hold: '1 ~60000"},
		}},
		{"another kind of lock is left alone", []rwStep{
			{do: "HSET lock you 1; PEXPIRE lock 60000", args: "me 60000 - s 1 1 0", reply: "!WRONGTYPE", state: "lock: you=1 ~60000"},
			{do: "DEL lock; HSET lock mode x", args: "me 60000 - s 1 1 0", reply: "!WRONGTYPE", state: "lock: mode=x ~-1"},
			{do: "DEL lock; SET lock text", args: "me 60000 - s 1 1 0", reply: "!WRONGTYPE", state: "lock: 'text ~-1"},
		}},
	}}.run(t)
}

func TestRwlockWriteAcquire(t *testing.T) {
	const (
		plain  = "me:write 60000 s 0 0 -1"
		stays  = "me:write 60000 s 3000 0 -1" // it waits
		fenced = "me:write 60000 s 0 1 600000"
		future = 9_000_000_000_000_000
	)
	rwTable{script: scripts.RwlockWriteAcquire, keys: "lock writers turn token", rows: []rwRow{
		{"a free lock is taken and a repeat answers as the first did", []rwStep{
			{args: plain, reply: "[1 0 0]", state: "lock: me:write=1 mode=write ~60000"},
		}},
		{"another writer keeps it out, and is not announced", []rwStep{
			{do: theirs, args: stays, reply: "~60000", state: "lock: mode=write you:write=1 ~60000"},
		}},
		{"readers keep it out, and are named", []rwStep{
			{do: readers2, args: plain, reply: "[0 ~60000 me 1 you 1]", state: "lock: me=1 mode=read you=1 ~60000; hold: '1 ~60000; hold2: '1 ~60000"},
		}},
		{"its own read does so too", []rwStep{
			{do: reading, args: plain, reply: "[0 ~60000 me 1]", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"},
		}},
		{"who waits for readers says so", []rwStep{
			{do: reading, args: stays, reply: "[0 ~60000 me 1]", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000; writers: <s> ~3000"},
			{args: "you:write 60000 s2 60000 0 -1", reply: "[0 ~60000 me 1]", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000; writers: <s s2> ~60000"},
			{args: stays, reply: "[0 ~60000 me 1]", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000; writers: <s s2> ~60000"},
		}},
		{"words that have ended are forgotten", []rwStep{
			{do: reading + "; " + waited, args: stays, reply: "[0 ~60000 me 1]", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000; writers: <s> ~60000"},
		}},
		{"a grant takes its own word back, and no other", []rwStep{
			{do: waits + "; ZADD writers SOON s", args: stays, reply: "[1 0 0]", state: "lock: me:write=1 mode=write ~60000; writers: <w1> ~60000"},
		}},
		{"readers have their turn first", []rwStep{
			{do: "SADD turn r; PEXPIRE turn 60000", args: stays, reply: "~60000", state: "turn: {r} ~60000; writers: <s> ~3000"},
			{do: "DEL turn", args: stays, reply: "[1 0 0]", state: "lock: me:write=1 mode=write ~60000"},
		}},
		{"a turn takes nothing from a writer that has the lock", []rwStep{
			{do: writing + "; SADD turn r; PEXPIRE turn 60000", args: stays, reply: "[1 0 0]", state: "lock: me:write=1 mode=write ~60000; turn: {r} ~60000"},
		}},
		{"a kept lock is nobody's", []rwStep{
			{do: keptRW, args: plain, reply: "~60000", state: "lock: me:write:released=1 mode=write ~60000"},
		}},
		{"a repeat lifts the TTL and never lowers it", []rwStep{
			{do: writing, args: "me:write 600000 s 0 0 -1", reply: "[1 0 0]", state: "lock: me:write=1 mode=write ~600000"},
			{args: plain, reply: "[1 0 0]", state: "lock: me:write=1 mode=write ~600000"},
		}},
		{"a repeat leaves the count, and the writer's own readers", []rwStep{
			{do: "HSET lock mode write me:write 3 mine 1; PEXPIRE lock 60000", args: plain, reply: "[1 0 0]", state: "lock: me:write=3 mine=1 mode=write ~60000"},
		}},
		{"a lock without TTL has no end", []rwStep{
			{do: "HSET lock mode write you:write 1", args: stays, reply: "-1", state: "lock: mode=write you:write=1 ~-1"},
			{do: "DEL lock; HSET lock mode read you 1", args: plain, reply: "[0 -1 you 1]", state: "lock: mode=read you=1 ~-1"},
		}},
		{"the first token is the server's time and a repeat reads it back", []rwStep{
			{args: fenced, reply: "[1 @now 1]", again: "[1 @+0 1]", state: "lock: me:write=1 mode=write ~60000; token: @+0 ~600000"},
		}},
		{"a block is reserved and a repeat gets its last token", []rwStep{
			{args: "me:write 60000 s 0 5 600000", reply: "[1 @now 5]", again: "[1 @+4 1]", state: "lock: me:write=1 mode=write ~60000; token: @+4 ~600000"},
		}},
		{"a refused writer mints none", []rwStep{
			{do: theirs + "; SET token 7", args: fenced, reply: "~60000", state: "lock: mode=write you:write=1 ~60000; token: '7 ~-1"},
			{do: "DEL lock; " + reading, args: fenced, reply: "[0 ~60000 me 1]", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000; token: '7 ~-1"},
		}},
		{"a counter that leads the clock goes on by one and reserves no block", []rwStep{
			{do: fmt.Sprint("SET token ", future), args: "me:write 60000 s 0 5 -1", reply: fmt.Sprintf("[1 %d 1]", future+1), state: fmt.Sprintf("lock: me:write=1 mode=write ~60000; token: '%d ~-1", future+1)},
		}},
		{"a counter without TTL keeps none", []rwStep{
			{do: "SET token 41", args: fenced, reply: "[1 @now 1]", again: "[1 @+0 1]", state: "lock: me:write=1 mode=write ~60000; token: @+0 ~-1"},
		}},
		{"a counter that was lost does not send tokens back", []rwStep{
			{args: fenced, reply: "[1 @now 1]", again: "[1 @+0 1]", state: "lock: me:write=1 mode=write ~60000; token: @+0 ~600000"},
			{do: "DEL token", args: fenced, reply: "[1 @now 1]", again: "[1 @+0 1]", state: "lock: me:write=1 mode=write ~60000; token: @+0 ~600000"},
		}},
		{"a counter that is no number leaves the lock free", []rwStep{
			{do: "SET token text", args: fenced, reply: "!WRONGTYPE", state: "token: 'text ~-1"},
			{do: "SET token 9007199254740991", args: fenced, reply: "!WRONGTYPE", state: "token: '9007199254740991 ~-1"},
		}},
		{"another kind of lock is left alone", []rwStep{
			{do: "HSET lock you 1; PEXPIRE lock 60000", args: stays, reply: "!WRONGTYPE", state: "lock: you=1 ~60000"},
			{do: "DEL lock; SET lock text", args: stays, reply: "!WRONGTYPE", state: "lock: 'text ~-1"},
		}},
	}}.run(t)
}

// However many read, a writer is told of a few, and of all if there are few.
func TestRwlockWriteAcquire_namesAFewReaders(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		for _, n := range []int{1, 16, 17, 150, 1000} {
			key := fmt.Sprint(name(t), ":", n)
			fields := []string{"HSET", key, "mode", "read"}
			for i := range n {
				fields = append(fields, fmt.Sprint("owner", i), "1")
			}
			require.NoError(t, b.raw(t, fields...).Error())
			args := []string{"me:write", "60000", "s", "0", "0", "-1"}
			reply, err := scripts.RwlockWriteAcquire.Exec(t.Context(), b.client, []string{key, key + ":w", key + ":t", key + ":c"}, args).ToArray()
			require.NoError(t, err)
			require.LessOrEqual(t, len(reply), 34)
			require.GreaterOrEqual(t, len(reply), 2+2*min(n, 2))
			if n <= 16 {
				require.Len(t, reply, 2+2*n)
			}
			for i := 2; i < len(reply); i += 2 {
				owner, err := reply[i].ToString()
				require.NoError(t, err)
				require.Contains(t, owner, "owner")
			}
			// Of a large hash that has become nearly empty it finds those that are left.
			for i := range n - 1 {
				fields[i] = fmt.Sprint("owner", i)
			}
			if n > 1 {
				require.NoError(t, b.raw(t, append([]string{"HDEL", key}, fields[:n-1]...)...).Error())
			}
			reply, err = scripts.RwlockWriteAcquire.Exec(t.Context(), b.client, []string{key, key + ":w", key + ":t", key + ":c"}, args).ToArray()
			require.NoError(t, err)
			require.Len(t, reply, 4, "%d readers before", n)
		}
	})
}

func TestRwlockReadRelease(t *testing.T) {
	const args = "me channel PUBLISH"
	rwTable{script: scripts.RwlockReadRelease, keys: "lock hold writers", rows: []rwRow{
		{"the last reader frees the lock and says so", []rwStep{
			{do: reading, args: args, reply: "1", again: "0", heard: "PUBLISH"},
			{do: reading, args: "me channel BOTH", reply: "1", again: "0", heard: "BOTH"},
			{do: reading, args: "me channel SPUBLISH", reply: "1", again: "0", heard: "SPUBLISH"},
		}},
		{"who leaves others says who they are", []rwStep{
			{do: readers2, args: args, reply: "[1 you 1]", again: "0", state: "lock: mode=read you=1 ~60000; hold2: '1 ~60000"},
		}},
		{"and tells a writer that waits", []rwStep{
			{do: readers2 + "; " + waits, args: args, reply: "1", again: "0", heard: "PUBLISH", state: "lock: mode=read you=1 ~60000; hold2: '1 ~60000; writers: <w1> ~60000"},
		}},
		{"not one whose word has ended", []rwStep{
			{do: readers2 + "; " + waited, args: args, reply: "[1 you 1]", again: "0", state: "lock: mode=read you=1 ~60000; hold2: '1 ~60000; writers: <w1> ~60000"},
		}},
		{"eight that are left are listed, and nine are not", []rwStep{
			{do: "HSET lock mode read me 1 a 1 b 1 c 1 d 1 e 1 f 1 g 1 h 2; PEXPIRE lock 60000", args: args, reply: "[1 a 1 b 1 c 1 d 1 e 1 f 1 g 1 h 2]", again: "0", state: "lock: a=1 b=1 c=1 d=1 e=1 f=1 g=1 h=2 mode=read ~60000"},
			{do: "HSET lock me 1 i 1; " + waits, args: args, reply: "1", again: "0", state: "lock: a=1 b=1 c=1 d=1 e=1 f=1 g=1 h=2 i=1 mode=read ~60000; writers: <w1> ~60000"},
		}},
		{"a writer's own reader leaves the lock a writer's", []rwStep{
			{do: writing + "; HSET lock mine 1; SET hold 1 PX 60000", args: "mine channel PUBLISH", reply: "1", again: "-1", state: "lock: me:write=1 mode=write ~60000"},
		}},
		{"a stranger changes nothing of others", []rwStep{
			{do: "HSET lock mode read you 1; PEXPIRE lock 60000; SET hold2 1 PX 60000", args: args, reply: "0", state: "lock: mode=read you=1 ~60000; hold2: '1 ~60000"},
			{do: "DEL lock hold2; " + theirs, args: args, reply: "-1", state: "lock: mode=write you:write=1 ~60000"},
			{do: "DEL lock", args: args, reply: "0"},
		}},
		{"the key of a hold that is no more goes too", []rwStep{
			{do: "SET hold 1 PX 60000", args: args, reply: "0"},
		}},
		{"while the slot moves the lock alone is given back", []rwStep{
			{do: reading, keys: "lock", args: args, reply: "1", again: "0", heard: "PUBLISH", state: "hold: '1 ~60000"},
			{do: "DEL hold; " + readers2, keys: "lock", args: args, reply: "[1 you 1]", again: "0", state: "lock: mode=read you=1 ~60000; hold: '1 ~60000; hold2: '1 ~60000"},
		}},
		{"other data is left alone", []rwStep{
			{do: "SET lock text", args: args, reply: "!WRONGTYPE", state: "lock: 'text ~-1"},
		}},
	}}.run(t)
}

func TestRwlockWriteRelease(t *testing.T) {
	const args = "me:write channel PUBLISH 0 1000"
	rwTable{script: scripts.RwlockWriteRelease, keys: "lock readers turn", rows: []rwRow{
		{"it frees the lock and says so", []rwStep{
			{do: writing, args: args, reply: "1", again: "0", heard: "PUBLISH=1"},
			{do: writing, args: "me:write channel BOTH 0 1000", reply: "1", again: "0", heard: "BOTH=1"},
			{do: writing, args: "me:write channel SPUBLISH 0 1000", reply: "1", again: "0", heard: "SPUBLISH=1"},
		}},
		{"all holds at once", []rwStep{
			{do: "HSET lock mode write me:write 3; PEXPIRE lock 60000", args: args, reply: "1", again: "0", heard: "PUBLISH=1"},
		}},
		{"readers that wait have their turn", []rwStep{
			{do: writing + "; SADD readers a b; PEXPIRE readers 60000; SADD turn c; PEXPIRE turn 60000", args: "me:write channel PUBLISH 0 30000", reply: "1", again: "0", heard: "PUBLISH=1", state: "turn: {a b} ~30000"},
		}},
		{"its own readers stay, and others may join them", []rwStep{
			{do: "HSET lock mode write me:write 1 mine 1; PEXPIRE lock 60000; SET hold 1 PX 60000", args: args, reply: "1", again: "-1", heard: "PUBLISH=1", state: "lock: mine=1 mode=read ~60000; hold: '1 ~60000"},
		}},
		{"a lock that is to stay taken is nobody's", []rwStep{
			{do: writing + "; SADD readers a; PEXPIRE readers 60000", args: "me:write channel PUBLISH 600000 1000", reply: "1", again: "-1", heard: "PUBLISH=1", state: "lock: me:write:released=1 mode=write ~600000; readers: {a} ~60000"},
		}},
		{"a stranger changes nothing", []rwStep{
			{do: theirs, args: args, reply: "-1", state: "lock: mode=write you:write=1 ~60000"},
			{do: "DEL lock; " + reading, args: args, reply: "-1", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"},
			{do: "DEL lock hold; SADD readers a; PEXPIRE readers 60000", args: args, reply: "0", state: "readers: {a} ~60000"},
		}},
		{"while the slot moves the lock alone is given back", []rwStep{
			{do: writing + "; SADD readers a; PEXPIRE readers 60000", keys: "lock", args: args, reply: "1", again: "0", heard: "PUBLISH=1", state: "readers: {a} ~60000"},
		}},
		{"other data is left alone", []rwStep{
			{do: "SET lock text", args: args, reply: "!WRONGTYPE", state: "lock: 'text ~-1"},
		}},
	}}.run(t)
}

func TestRwlockDowngrade(t *testing.T) {
	const args = "me 60000 channel PUBLISH 30000"
	rwTable{script: scripts.RwlockDowngrade, keys: "lock hold readers turn", rows: []rwRow{
		{"a writer becomes a reader and all are told", []rwStep{
			{do: writing, args: args, reply: "1", heard: "PUBLISH=1", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"},
		}},
		{"sharded too", []rwStep{
			{do: writing, args: "me 60000 channel BOTH 30000", reply: "1", heard: "BOTH=1", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"},
		}},
		{"readers that wait have their turn", []rwStep{
			{do: writing + "; SADD readers a; PEXPIRE readers 60000", args: args, reply: "1", heard: "PUBLISH=1", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000; turn: {a} ~30000"},
		}},
		{"whatever its count, and its own readers stay", []rwStep{
			{do: "HSET lock mode write me:write 2 mine 1; PEXPIRE lock 600000; SET hold2 1 PX 60000", args: args, reply: "1", heard: "PUBLISH=1", state: "lock: me=1 mine=1 mode=read ~600000; hold: '1 ~60000; hold2: '1 ~60000"},
		}},
		{"the lock lives as long as the hold", []rwStep{
			{do: writing, args: "me 600000 channel PUBLISH 30000", reply: "1", heard: "PUBLISH=1", state: "lock: me=1 mode=read ~600000; hold: '1 ~600000"},
		}},
		{"a repeat that is late lifts TTLs and tells nobody", []rwStep{
			{do: reading, args: "me 600000 channel PUBLISH 30000", reply: "1", state: "lock: me=1 mode=read ~600000; hold: '1 ~600000"},
		}},
		{"a copy that comes after the release changes nothing", []rwStep{
			{args: args, reply: "0"},
			{do: theirs, args: args, reply: "-1", state: "lock: mode=write you:write=1 ~60000"},
			{do: "DEL lock; HSET lock mode read you 1; PEXPIRE lock 60000", args: args, reply: "-1", state: "lock: mode=read you=1 ~60000"},
		}},
		{"a lock that is kept is nobody's", []rwStep{
			{do: keptRW, args: args, reply: "-1", state: "lock: me:write:released=1 mode=write ~60000"},
		}},
		{"while the slot moves it finds the key of the hold there", []rwStep{
			{do: writing + "; SET hold 1 PX 60000; SADD readers a; PEXPIRE readers 60000", keys: "lock", args: "me 600000 channel PUBLISH 30000", reply: "1", heard: "PUBLISH=1", state: "lock: me=1 mode=read ~600000; hold: '1 ~60000; readers: {a} ~60000"},
		}},
		{"other data is left alone", []rwStep{
			{do: "SET lock text", args: args, reply: "!WRONGTYPE", state: "lock: 'text ~-1"},
		}},
	}}.run(t)
}

func TestRwlockReadRenew(t *testing.T) {
	rwTable{script: scripts.RwlockReadRenew, keys: "lock hold", rows: []rwRow{
		{"lock and hold are lifted", []rwStep{
			{do: reading, args: "me 600000", reply: "[1]", state: "lock: me=1 mode=read ~600000; hold: '1 ~600000"},
		}},
		{"and never lowered", []rwStep{
			{do: reading + "; PEXPIRE lock 900000; PEXPIRE hold 600000", args: "me 60000", reply: "[1]", state: "lock: me=1 mode=read ~900000; hold: '1 ~600000"},
		}},
		{"a hold whose key is gone is lost", []rwStep{
			{do: reading + "; DEL hold", args: "me 600000", reply: "[0]", state: "lock: me=1 mode=read ~60000"},
		}},
		{"a hold that was pruned is lost", []rwStep{
			{do: reading + "; HDEL lock me; HSET lock you 1", args: "me 600000", reply: "[0]", state: "lock: mode=read you=1 ~60000; hold: '1 ~60000"},
		}},
		{"a writer has the lock", []rwStep{
			{do: theirs + "; SET hold 1 PX 60000", args: "me 600000", reply: "[-1]", state: "lock: mode=write you:write=1 ~60000; hold: '1 ~60000"},
		}},
		{"nothing is made anew", []rwStep{
			{args: "me 600000", reply: "[0]"},
			{do: "SET hold 1 PX 60000", args: "me 600000", reply: "[0]", state: "hold: '1 ~60000"},
		}},
		{"a writer's own reader", []rwStep{
			{do: writing + "; HSET lock mine 1; SET hold 1 PX 60000", args: "mine 600000", reply: "[1]", state: "lock: me:write=1 mine=1 mode=write ~600000; hold: '1 ~600000"},
		}},
	}}.run(t)
}

func TestRwlockReadRenew_oneBadKeyCostsTheOthersNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		names := map[string]string{}
		for _, n := range rwNames {
			names[n] = name(t) + ":" + n
		}
		b.do(t, names, readers2+"; SET turn text; RPUSH readers a")
		for _, bad := range []string{"turn hold", "readers hold"} {
			reply, err := scripts.RwlockReadRenew.Exec(t.Context(), b.client, expand(names, bad+" lock hold lock hold2 lock token"),
				[]string{"me", "me", "you", "they", "60000", "600000", "600000", "600000"}).ToArray()
			require.NoError(t, err)
			require.Contains(t, plain(reply[0].ToString()), "WRONGTYPE")
			require.Equal(t, "1 1 0", plain(reply[1].AsInt64())+" "+plain(reply[2].AsInt64())+" "+plain(reply[3].AsInt64()))
			b.requireRW(t, names, "lock: me=1 mode=read you=1 ~600000; hold: '1 ~600000; hold2: '1 ~600000; turn: 'text ~-1; readers: list ~-1", 0, bad)
		}
	})
}

func TestRwlockHoldRenew(t *testing.T) {
	rwTable{script: scripts.RwlockHoldRenew, keys: "hold", rows: []rwRow{
		{"lifted, never lowered, never made anew", []rwStep{
			{do: "SET hold 1 PX 60000", args: "600000", reply: "1", state: "hold: '1 ~600000"},
			{args: "60000", reply: "1", state: "hold: '1 ~600000"},
			{do: "DEL hold", args: "60000", reply: "0"},
		}},
	}}.run(t)
}

func TestRwlockPrune(t *testing.T) {
	const args = "channel PUBLISH me 1"
	rwTable{script: scripts.RwlockPrune, keys: "lock hold", rows: []rwRow{
		{"a reader that lives stays, and the writer learns until when", []rwStep{
			{do: reading, args: args, reply: "[0 ~60000]", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"},
		}},
		{"a dead one goes, and the lock is free", []rwStep{
			{do: reading + "; DEL hold", args: args, reply: "[1 -2]", again: "[0 -2]", heard: "PUBLISH"},
			{do: reading + "; DEL hold", args: "channel BOTH me 1", reply: "[1 -2]", again: "[0 -2]", heard: "BOTH"},
		}},
		{"a dead one among those that live", []rwStep{
			{
				do: readers2 + "; DEL hold", keys: "lock hold hold2", args: "channel PUBLISH me 1 you 1", reply: "[1 ~60000]", again: "[0 ~60000]",
				state: "lock: mode=read you=1 ~60000; hold2: '1 ~60000",
			},
		}},
		{"one that nobody looked at stays", []rwStep{
			{do: readers2 + "; DEL hold hold2", args: args, reply: "[1 -1]", again: "[0 -1]", state: "lock: mode=read you=1 ~60000"},
		}},
		{"the first end of several", []rwStep{
			{
				do: "HSET lock mode read me 1 you 1; PEXPIRE lock 600000; SET hold 1 PX 600000; SET hold2 1 PX 60000", keys: "lock hold hold2",
				args: "channel PUBLISH me 1 you 1", reply: "[0 ~60000]", state: "lock: me=1 mode=read you=1 ~600000; hold: '1 ~600000; hold2: '1 ~60000",
			},
		}},
		{"any of its keys keeps one alive that holds it more than once", []rwStep{
			{do: "HSET lock mode read me 2; PEXPIRE lock 60000; SET hold2 1 PX 60000", keys: "lock hold hold2", args: "channel PUBLISH me 2", reply: "[0 ~60000]", state: "lock: me=2 mode=read ~60000; hold2: '1 ~60000"},
			{do: "DEL hold2; SET hold 1 PX 60000", keys: "lock hold hold2", args: "channel PUBLISH me 2", reply: "[0 ~60000]", state: "lock: me=2 mode=read ~60000; hold: '1 ~60000"},
			{do: "DEL hold", keys: "lock hold hold2", args: "channel PUBLISH me 2", reply: "[1 -2]", again: "[0 -2]", heard: "PUBLISH"},
		}},
		{"one whose count has changed is not judged", []rwStep{
			{do: "HSET lock mode read me 2; PEXPIRE lock 60000; SET hold2 1 PX 60000", args: args, reply: "[0 -1]", state: "lock: me=2 mode=read ~60000; hold2: '1 ~60000"},
		}},
		{"one that has left is no news", []rwStep{
			{do: "HSET lock mode read you 1; PEXPIRE lock 60000; SET hold2 1 PX 60000", args: args, reply: "[0 -1]", state: "lock: mode=read you=1 ~60000; hold2: '1 ~60000"},
		}},
		{"a TTL that nobody needs any more is lowered, and all are told", []rwStep{
			{do: reading + "; PEXPIRE lock 600000", args: args, reply: "[0 ~60000]", heard: "PUBLISH", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"},
			{do: "PERSIST lock", args: args, reply: "[0 ~60000]", heard: "PUBLISH", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"},
		}},
		{"not while there is somebody who was not looked at", []rwStep{
			{do: readers2 + "; PEXPIRE lock 600000", args: args, reply: "[0 ~60000]", state: "lock: me=1 mode=read you=1 ~600000; hold: '1 ~60000; hold2: '1 ~60000"},
		}},
		{"a hold without an end has none", []rwStep{
			{do: reading + "; PERSIST hold; PEXPIRE lock 600000", args: args, reply: "[0 -1]", state: "lock: me=1 mode=read ~600000; hold: '1 ~-1"},
		}},
		{"a writer's lock is left alone", []rwStep{
			{do: "HSET lock mode write you:write 1 me 1; PEXPIRE lock 60000", args: args, reply: "[0 -1]", state: "lock: me=1 mode=write you:write=1 ~60000"},
			{do: "DEL lock; HSET lock me 1; PEXPIRE lock 60000", args: args, reply: "[0 -1]", state: "lock: me=1 ~60000"},
			{do: "DEL lock", args: args, reply: "[0 -2]"},
		}},
	}}.run(t)
}

func TestRwlockWithdraw(t *testing.T) {
	rwTable{script: scripts.RwlockWriteWithdraw, keys: "writers", rows: []rwRow{
		{"the last writer that waits tells readers", []rwStep{
			{do: waits, args: "w1 channel PUBLISH", reply: "1", again: "0", heard: "PUBLISH=1"},
			{do: waits, args: "w1 channel BOTH", reply: "1", again: "0", heard: "BOTH=1"},
			{do: waited + "; ZADD writers SOON w2", args: "w2 channel PUBLISH", reply: "1", again: "0", heard: "PUBLISH=1", state: "writers: <w1> ~60000"},
		}},
		{"another does not", []rwStep{
			{do: waits + "; ZADD writers SOON w2", args: "w1 channel PUBLISH", reply: "0", state: "writers: <w2> ~60000"},
			{args: "w3 channel PUBLISH", reply: "0", state: "writers: <w2> ~60000"},
		}},
	}}.run(t)
	rwTable{script: scripts.RwlockReadWithdraw, keys: "readers turn", rows: []rwRow{
		{"the last reader whose turn it is tells writers", []rwStep{
			{do: "SADD readers s; PEXPIRE readers 60000; SADD turn s; PEXPIRE turn 60000", args: "s channel PUBLISH", reply: "1", again: "0", heard: "PUBLISH"},
			{do: "SADD turn s; PEXPIRE turn 60000", args: "s channel BOTH", reply: "1", again: "0", heard: "BOTH"},
		}},
		{"another does not", []rwStep{
			{do: "SADD readers s r; PEXPIRE readers 60000; SADD turn s r; PEXPIRE turn 60000", args: "s channel PUBLISH", reply: "0", state: "readers: {r} ~60000; turn: {r} ~60000"},
			{args: "x channel PUBLISH", reply: "0", state: "readers: {r} ~60000; turn: {r} ~60000"},
		}},
	}}.run(t)
}

func TestRwlockInfo(t *testing.T) {
	rwTable{script: scripts.RwlockInfo, keys: "lock", rows: []rwRow{
		{"who holds it", []rwStep{
			{reply: "[-2]"},
			{do: writing, reply: "[~60000 write me:write 1]", state: "lock: me:write=1 mode=write ~60000"},
			{do: "DEL lock; " + reading, reply: "[~60000 read me 1]", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"},
			{do: "DEL lock; HSET lock me 1", reply: "!WRONGTYPE", state: "lock: me=1 ~-1; hold: '1 ~60000"},
		}},
	}}.run(t)
}

func TestRwlockForce(t *testing.T) {
	const read, write = "read channel PUBLISH 0", "write channel PUBLISH 1"
	rwTable{script: scripts.RwlockForce, keys: "lock", rows: []rwRow{
		{"each side in its mode alone", []rwStep{
			{args: read, reply: "0"},
			{args: write, reply: "0"},
			{do: reading, args: write, reply: "0", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"},
			{args: read, reply: "1", again: "0", heard: "PUBLISH", state: "hold: '1 ~60000"},
			{do: writing, args: read, reply: "0", state: "lock: me:write=1 mode=write ~60000; hold: '1 ~60000"},
			{args: "write channel BOTH 1", reply: "1", again: "0", heard: "BOTH=1", state: "hold: '1 ~60000"},
		}},
		{"another kind of lock is left alone", []rwStep{
			{do: "HSET lock me 1; PEXPIRE lock 60000", args: write, reply: "!WRONGTYPE", state: "lock: me=1 ~60000"},
			{do: "DEL lock; SET lock text", args: read, reply: "!WRONGTYPE", state: "lock: 'text ~-1"},
		}},
	}}.run(t)
}

// What the next owner's commands of another kind find: each kind leaves the other's
// lock alone.
func TestRwlock_andPlainLocksRefuseEachOther(t *testing.T) {
	rwTable{script: scripts.ReentrantAcquire, keys: "lock", rows: []rwRow{
		{"plain on a reader's", []rwStep{{do: reading, args: "you 60000", reply: "!WRONGTYPE", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"}}},
		{"plain on a writer's", []rwStep{{do: writing, args: "you 60000", reply: "!WRONGTYPE", state: "lock: me:write=1 mode=write ~60000"}}},
	}}.run(t)
}

// When memory is full nobody gets a lock, who has one keeps it and gives it back, and
// who is refused is told the truth. Miniredis has no maxmemory.
func TestRwlock_outOfMemory(t *testing.T) {
	s := redistest.Run(t)
	b := &backend{name: "full", client: s.Client(t)}
	names := map[string]string{}
	for _, n := range rwNames {
		names[n] = n
	}
	ear := b.listen(t, "channel")
	for _, c := range []struct {
		name   string
		script *scripts.Script
		keys   string
		do     string // while there is memory
		args   string
		reply  string
		state  string
		heard  string
	}{
		{name: "a reader is refused and leaves nothing", script: scripts.RwlockReadAcquire, keys: "lock hold writers readers turn", args: "me 60000 - s 1 1 0", reply: "!OOM"},
		{name: "a writer is refused and leaves nothing", script: scripts.RwlockWriteAcquire, keys: "lock writers turn token", args: "me:write 60000 s 3000 1 -1", reply: "!OOM"},
		{name: "a reader behind a writer is told how long", script: scripts.RwlockReadAcquire, keys: "lock hold writers readers turn", do: theirs, args: "me 60000 - s 1 1 0", reply: "~60000", state: "lock: mode=write you:write=1 ~60000"},
		{name: "a writer behind readers is told who they are", script: scripts.RwlockWriteAcquire, keys: "lock writers turn token", do: reading, args: "you:write 60000 s 3000 1 -1", reply: "[0 ~60000 me 1]", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000"},
		{name: "a repeated read acquire answers as the first did", script: scripts.RwlockReadAcquire, keys: "lock hold writers readers turn", do: reading, args: "me 600000 - s 1 1 0", reply: "-2", state: "lock: me=1 mode=read ~600000; hold: '1 ~600000"},
		{name: "a repeated write acquire too", script: scripts.RwlockWriteAcquire, keys: "lock writers turn token", do: writing + "; SET token 7", args: "me:write 600000 s 3000 1 -1", reply: "[1 7 1]", state: "lock: me:write=1 mode=write ~600000; token: '7 ~-1"},
		{name: "renew", script: scripts.RwlockReadRenew, keys: "lock hold", do: reading, args: "me 600000", reply: "[1]", state: "lock: me=1 mode=read ~600000; hold: '1 ~600000"},
		{name: "renew a hold alone", script: scripts.RwlockHoldRenew, keys: "hold", do: reading, args: "600000", reply: "1", state: "lock: me=1 mode=read ~60000; hold: '1 ~600000"},
		{name: "read release", script: scripts.RwlockReadRelease, keys: "lock hold writers", do: reading, args: "me channel PUBLISH", reply: "1", heard: "PUBLISH"},
		{name: "write release with a turn", script: scripts.RwlockWriteRelease, keys: "lock readers turn", do: writing + "; SADD readers a; PEXPIRE readers 60000", args: "me:write channel PUBLISH 0 30000", reply: "1", state: "turn: {a} ~30000", heard: "PUBLISH=1"},
		{name: "write release that keeps", script: scripts.RwlockWriteRelease, keys: "lock readers turn", do: writing, args: "me:write channel PUBLISH 60000 30000", reply: "1", state: "lock: me:write:released=1 mode=write ~60000", heard: "PUBLISH=1"},
		{name: "downgrade", script: scripts.RwlockDowngrade, keys: "lock hold readers turn", do: writing, args: "me 60000 channel PUBLISH 30000", reply: "1", state: "lock: me=1 mode=read ~60000; hold: '1 ~60000", heard: "PUBLISH=1"},
		{name: "prune", script: scripts.RwlockPrune, keys: "lock hold", do: reading + "; DEL hold", args: "channel PUBLISH me 1", reply: "[1 -2]", heard: "PUBLISH"},
		{name: "withdraw", script: scripts.RwlockWriteWithdraw, keys: "writers", do: waits, args: "w1 channel PUBLISH", reply: "1", heard: "PUBLISH=1"},
		{name: "info", script: scripts.RwlockInfo, keys: "lock", do: writing, reply: "[~60000 write me:write 1]", state: "lock: me:write=1 mode=write ~60000"},
		{name: "force", script: scripts.RwlockForce, keys: "lock", do: writing, args: "write channel PUBLISH 1", reply: "1", heard: "PUBLISH=1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.Do(t, append([]string{"DEL"}, rwNames...)...)
			names["SOON"] = strconv.FormatInt(time.Now().UnixMilli()+60_000, 10)
			b.do(t, names, c.do)
			free := s.FillMemory(t)
			got := text(c.script.Exec(t.Context(), b.client, expand(names, c.keys), expand(names, c.args)))
			b.requireReply(t, c.reply, got, new(int64), 0, 0, got)
			b.requireRW(t, names, c.state, 0, c.name)
			require.Equal(t, c.heard, ear.heard(t))
			free()
		})
	}
}
