package scripts_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/scripts"
)

// patience is for what must happen; nothing waits that long unless it fails.
const patience = 20 * time.Second

// slack is by how much a TTL may be shorter than what it was set to. It is long
// for a slow machine; the TTLs of the tables lie further apart.
const slack = 20_000

// backend is a server that the tables run on.
type backend struct {
	name      string
	client    rueidis.Client
	simulated bool
}

// everywhere runs a test on the real server and on miniredis.
func everywhere(t *testing.T, test func(t *testing.T, b *backend)) {
	t.Helper()
	for _, b := range []*backend{real, mini} {
		t.Run(b.name, func(t *testing.T) { test(t, b) })
	}
}

// do runs commands that are separated by "; ".
func (b *backend) do(t *testing.T, names map[string]string, commands string) {
	t.Helper()
	for command := range strings.SplitSeq(commands, "; ") {
		if words := expand(names, command); len(words) > 0 {
			require.NoError(t, b.raw(t, words...).Error(), command)
		}
	}
}

func (b *backend) raw(t *testing.T, words ...string) rueidis.RedisResult {
	t.Helper()
	return b.client.Do(t.Context(), b.client.B().Arbitrary(words...).Build())
}

// state is what a key holds: "" nothing, "'text" a string, "f=v f=v" a hash, "{m m}"
// a set, "<m m>" a sorted set, or the name of another type.
func (b *backend) state(t *testing.T, key string) string {
	t.Helper()
	kind, err := b.raw(t, "TYPE", key).ToString()
	require.NoError(t, err)
	switch kind {
	case "none":
		return ""
	case "string":
		value, err := b.raw(t, "GET", key).ToString()
		require.NoError(t, err)
		return "'" + value
	case "hash":
		fields, err := b.raw(t, "HGETALL", key).AsStrMap()
		require.NoError(t, err)
		var pairs []string
		for field, value := range fields {
			pairs = append(pairs, field+"="+value)
		}
		slices.Sort(pairs)
		return strings.Join(pairs, " ")
	case "set":
		members, err := b.raw(t, "SMEMBERS", key).AsStrSlice()
		require.NoError(t, err)
		slices.Sort(members)
		return "{" + strings.Join(members, " ") + "}"
	case "zset":
		members, err := b.raw(t, "ZRANGE", key, "0", "-1").AsStrSlice()
		require.NoError(t, err)
		return "<" + strings.Join(members, " ") + ">"
	default:
		return kind
	}
}

func (b *backend) pttl(t *testing.T, key string) int64 {
	t.Helper()
	left, err := b.raw(t, "PTTL", key).AsInt64()
	require.NoError(t, err)
	return left
}

// micros is the server's time in microseconds, which tokens are made of.
func (b *backend) micros(t *testing.T) int64 {
	t.Helper()
	time, err := b.raw(t, "TIME").AsIntSlice()
	require.NoError(t, err)
	return time[0]*1_000_000 + time[1]
}

// requireTTL checks the rest of a key's life: want is what it was set to, -1 for
// no end, 0 for a key that does not exist.
func (b *backend) requireTTL(t *testing.T, key string, want int) {
	t.Helper()
	switch left := int(b.pttl(t, key)); want {
	case 0:
		require.Equal(t, -2, left, "%s exists", key)
	case -1:
		require.Equal(t, -1, left, "%s has a TTL", key)
	default:
		requireLeft(t, want, left)
	}
}

func requireLeft(t *testing.T, want, left int) {
	t.Helper()
	require.LessOrEqual(t, left, want)
	require.Greater(t, left, max(0, want-slack))
}

// text is a reply in one line: an error as "!text", an array as "[a b]".
func text(r rueidis.RedisResult) string {
	v, err := r.ToAny()
	switch {
	case rueidis.IsRedisNil(err):
		return "nil"
	case err != nil:
		return "!" + err.Error()
	default:
		return textOf(v)
	}
}

func textOf(v any) string {
	list, ok := v.([]any)
	if !ok {
		return fmt.Sprint(v)
	}
	parts := make([]string, len(list))
	for i := range list {
		parts[i] = textOf(list[i])
	}
	return "[" + strings.Join(parts, " ") + "]"
}

// A table is what one script does, row by row, each on keys of its own.
type table struct {
	script *scripts.Script
	keys   string // of "lock", "more"
	rows   []row
}

type row struct {
	name  string
	steps []step
}

// A step is one call, and the same call again: every script but one says that
// this does no harm. Of words, "lock" and "more" stand for the row's keys and
// "channel" for its channel.
type step struct {
	script *scripts.Script // if it is not the table's
	keys   string          // of that script

	do   string // raw commands before the call, separated by "; "
	args string // of the call

	// The reply: see text. "!WORD" is an error that starts so, "~60000" a rest of
	// that TTL, "@now" a token of just now, and "@+2" the one 2 above that.
	reply string
	again string // the reply to the repeat, unless it is the same

	lock    string // what the key holds after the call, and after the repeat
	ttl     int    // its TTL; see requireTTL
	more    string // the same of the second key
	moreTTL int

	heard      string // what the channel got: "", PUBLISH, SPUBLISH or BOTH
	heardAgain string // what it got by the repeat
}

func (tb table) run(t *testing.T) {
	t.Helper()
	for _, r := range tb.rows {
		t.Run(r.name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, b *backend) { tb.row(t, b, r, alone) })
			if batches[tb.script] != nil {
				t.Run("batch", func(t *testing.T) {
					everywhere(t, func(t *testing.T, b *backend) { tb.row(t, b, r, amongOthers) })
				})
			}
		})
	}
}

// batches are the scripts that are also run for many callers at once.
var batches = map[*scripts.Script]*scripts.Batch{
	scripts.ReentrantAcquire:        scripts.ReentrantAcquireBatch,
	scripts.ReentrantAcquireFenced:  scripts.ReentrantAcquireFencedBatch,
	scripts.ReentrantRelease:        scripts.ReentrantReleaseBatch,
	scripts.ReentrantReleaseReceipt: scripts.ReentrantReleaseReceiptBatch,
}

// alone runs a script and returns its reply as a text.
func alone(t *testing.T, b *backend, s *scripts.Script, keys, args []string) string {
	t.Helper()
	return text(s.Exec(t.Context(), b.client, keys, args))
}

// amongOthers has one script run it that does the same for others too, of which
// one fails.
func amongOthers(t *testing.T, b *backend, s *scripts.Script, keys, args []string) string {
	t.Helper()
	batch := batches[s]
	if batch == nil {
		return alone(t, b, s, keys, args)
	}
	other := func(suffix string) scripts.Call {
		c := scripts.Call{Args: slices.Clone(args)}
		for _, key := range keys {
			c.Keys = append(c.Keys, key+suffix)
		}
		return c
	}
	bad := other("-bad")
	require.NoError(t, b.raw(t, "SET", bad.Keys[0], "no lock").Error())
	replies, err := batch.Exec(t.Context(), b.client, []scripts.Call{other("-before"), bad, {Keys: keys, Args: args}, other("-after")})
	require.NoError(t, err)
	require.Len(t, replies, 4)
	require.NoError(t, replies[0].Error())
	require.Contains(t, replies[1].Error().Error(), "WRONGTYPE")
	require.NoError(t, replies[3].Error())
	v, err := replies[2].ToAny()
	if err != nil {
		return "!" + err.Error()
	}
	return textOf(v)
}

// way is how a step is run.
type way func(t *testing.T, b *backend, s *scripts.Script, keys, args []string) string

func (tb table) row(t *testing.T, b *backend, r row, run way) {
	t.Helper()
	lock, more, channel := name(t)+":lock", name(t)+":more", name(t)+":channel"
	names := map[string]string{"lock": lock, "more": more, "channel": channel}
	if b.simulated && slices.ContainsFunc(r.steps, func(s step) bool {
		return strings.Contains(s.args, "SPUBLISH") || strings.Contains(s.args, "BOTH")
	}) {
		t.Skip("miniredis has no sharded channels: it knows neither SPUBLISH nor SSUBSCRIBE")
	}
	ear := b.listen(t, channel)
	var token int64 // of the last "@now"
	for i, s := range r.steps {
		script, keys := cmp.Or(s.script, tb.script), expand(names, cmp.Or(s.keys, tb.keys))
		b.do(t, names, s.do)
		call := func(reply, heard, what string) {
			t.Helper()
			from := b.micros(t)
			got := run(t, b, script, keys, expand(names, s.args))
			upto := b.micros(t)

			what = fmt.Sprintf("step %d%s: %s %s: got %s", i+1, what, script.Name(), s.args, got)
			b.requireReply(t, reply, got, &token, from, upto, what)
			require.Equal(t, strings.Replace(s.lock, "@", "'@", 1), mark(b.state(t, lock), s.lock, token), what)
			require.Equal(t, strings.Replace(s.more, "@", "'@", 1), mark(b.state(t, more), s.more, token), what)
			b.requireTTL(t, lock, s.ttl)
			b.requireTTL(t, more, s.moreTTL)
			require.Equal(t, heard, ear.heard(t), what)
		}
		call(s.reply, s.heard, "")
		call(cmp.Or(s.again, s.reply), s.heardAgain, ", repeated")
	}
}

// mark writes a state with tokens in the way of the tables, if it is wanted so.
func mark(state, want string, token int64) string {
	if !strings.HasPrefix(want, "@") {
		return state
	}
	n, err := strconv.ParseInt(strings.TrimPrefix(state, "'"), 10, 64)
	if err != nil {
		return state
	}
	return fmt.Sprintf("'@+%d", n-token)
}

// requireReply compares word by word.
func (b *backend) requireReply(t *testing.T, want, got string, token *int64, from, upto int64, what string) {
	t.Helper()
	if prefix, ok := strings.CutPrefix(want, "!"); ok {
		require.True(t, strings.HasPrefix(got, "!"), what)
		if b.simulated { // it wraps the error of a command in text of its own
			require.Contains(t, got, prefix, what)
		} else {
			require.True(t, strings.HasPrefix(got, want), what)
		}
		return
	}
	wants, gots := words(want), words(got)
	require.Equal(t, len(wants), len(gots), what)
	for i, w := range wants {
		n, err := strconv.ParseInt(gots[i], 10, 64)
		switch {
		case strings.HasPrefix(w, "~"):
			require.NoError(t, err, what)
			limit, err := strconv.Atoi(w[1:])
			require.NoError(t, err)
			requireLeft(t, limit, int(n))
		case w == "@now":
			require.NoError(t, err, what)
			require.GreaterOrEqual(t, n, from, what)
			require.LessOrEqual(t, n, upto, what)
			*token = n
		case strings.HasPrefix(w, "@+"):
			require.NoError(t, err, what)
			require.Equal(t, w, fmt.Sprintf("@+%d", n-*token), what)
		default:
			require.Equal(t, w, gots[i], what)
		}
	}
}

// words are the elements of a reply, its brackets among them.
func words(reply string) []string {
	return strings.Fields(strings.NewReplacer("[", " [ ", "]", " ] ").Replace(reply))
}

// expand splits a line into words and puts in the names. "-" is an empty word.
func expand(names map[string]string, line string) []string {
	fields := strings.Fields(line)
	for i, word := range fields {
		if name, ok := names[word]; ok {
			fields[i] = name
		} else if word == "-" {
			fields[i] = ""
		}
	}
	return fields
}

// ear hears what is published to one channel.
type ear struct {
	b        *backend
	channel  string
	families []string
	messages map[string]chan string // by the command that they were sent with
	ends     int
}

func (b *backend) listen(t *testing.T, channel string) *ear {
	t.Helper()
	e := &ear{b: b, channel: channel, families: []string{"PUBLISH"}, messages: map[string]chan string{}}
	if !b.simulated {
		e.families = append(e.families, "SPUBLISH")
	}
	for _, family := range e.families {
		messages := make(chan string, 16)
		e.messages[family] = messages
		c, release := b.client.Dedicate()
		t.Cleanup(release)
		subscribed := make(chan struct{}, 1)
		c.SetPubSubHooks(rueidis.PubSubHooks{
			OnMessage: func(m rueidis.PubSubMessage) { messages <- m.Channel + " " + m.Message },
			OnSubscription: func(s rueidis.PubSubSubscription) {
				if s.Kind == "subscribe" || s.Kind == "ssubscribe" {
					subscribed <- struct{}{}
				}
			},
		})
		subscribe := c.B().Subscribe().Channel(channel).Build()
		if family == "SPUBLISH" {
			subscribe = c.B().Ssubscribe().Channel(channel).Build()
		}
		require.NoError(t, c.Do(t.Context(), subscribe).Error())
		await(t, subscribed)
	}
	return e
}

// heard returns by which commands the channel got its message since the last
// call, in the way of the tables. What comes before a message of our own came
// before it was sent, so nothing has to be waited for.
func (e *ear) heard(t *testing.T) string {
	t.Helper()
	e.ends++
	end := fmt.Sprint("end ", e.ends)
	var heard []string
	for _, family := range e.families {
		n, err := e.b.raw(t, family, e.channel, end).AsInt64()
		require.NoError(t, err)
		require.EqualValues(t, 1, n, "subscribers")
		for {
			message := await(t, e.messages[family])
			if message == e.channel+" "+end {
				break
			}
			payload := strings.TrimPrefix(message, e.channel+" ")
			require.Contains(t, []string{"0", "1"}, payload)
			if payload == "1" { // what a writer says
				family += "=1"
			}
			heard = append(heard, family)
			family = strings.TrimSuffix(family, "=1")
		}
	}
	switch strings.Join(heard, " ") {
	case "PUBLISH SPUBLISH":
		return "BOTH"
	case "PUBLISH=1 SPUBLISH=1":
		return "BOTH=1"
	}
	return strings.Join(heard, " ")
}

func await[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case v = <-c:
	case <-ctx.Done():
		t.Fatal("nothing came")
	}
	return v
}
