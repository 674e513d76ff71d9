package explore_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/explore"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/scripts"
)

// A miniServer is a miniredis that is called and not connected to.
type miniServer struct {
	redis *miniredis.Miniredis
	holds string
}

func newMini(t *testing.T) *miniServer {
	t.Helper()
	m := &miniServer{redis: miniredis.NewMiniRedis()}
	conn, err := m.redis.Dial() // starts it without a port
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	t.Cleanup(m.redis.Close)
	return m
}

// Run implements [explore.Server].
func (m *miniServer) Run(from explore.Contents, now time.Duration, s *scripts.Script, keys, args []string) (any, explore.Contents, error) {
	if err := m.fill(from, now); err != nil {
		return nil, nil, err
	}
	// The clock does not begin at 0, which would be no token.
	m.redis.SetTime(time.Unix(1, 0).Add(now))
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	peer := server.NewPeer(w)
	m.redis.Server().Dispatch(peer, slices.Concat([]string{"EVAL", s.Text(), strconv.Itoa(len(keys))}, keys, args))
	peer.Flush()
	reply, err := server.ParseReply(bufio.NewReader(&b))
	if err != nil { // an error reply
		reply = err
	}
	return plain(reply), m.dump(now), nil
}

// Wait implements [explore.Server].
func (m *miniServer) Wait(from explore.Contents, now, d time.Duration) (explore.Contents, error) {
	if err := m.fill(from, now); err != nil {
		return nil, err
	}
	m.redis.FastForward(d)
	return m.dump(now + d), nil
}

func (m *miniServer) fill(c explore.Contents, now time.Duration) error {
	if m.holds == at(c, now) {
		return nil
	}
	m.redis.FlushAll()
	for _, k := range c {
		switch {
		case k.Type == "set":
			if _, err := m.redis.SetAdd(k.Name, k.Fields...); err != nil {
				return err
			}
		case k.Scores != nil:
			for _, s := range k.Scores {
				member, text := cut(s)
				score, err := strconv.ParseFloat(text, 64)
				if err == nil {
					_, err = m.redis.ZAdd(k.Name, score, member)
				}
				if err != nil {
					return err
				}
			}
		case k.Fields == nil:
			if err := m.redis.Set(k.Name, k.Text); err != nil {
				return err
			}
		default:
			for _, f := range k.Fields {
				name, value := cut(f)
				m.redis.HSet(k.Name, name, value)
			}
		}
		if k.Until > 0 {
			m.redis.SetTTL(k.Name, k.Until-now)
		}
	}
	return nil
}

func (m *miniServer) dump(now time.Duration) (c explore.Contents) {
	for _, name := range m.redis.Keys() {
		k := explore.Key{Name: name}
		switch m.redis.Type(name) {
		case "hash":
			fields, _ := m.redis.HKeys(name)
			for _, f := range fields {
				k.Fields = append(k.Fields, f+"="+m.redis.HGet(name, f))
			}
			slices.Sort(k.Fields)
		case "set":
			k.Type = "set"
			k.Fields, _ = m.redis.Members(name)
		case "zset":
			all, _ := m.redis.SortedSet(name)
			for member, score := range all {
				k.Scores = append(k.Scores, fmt.Sprintf("%s=%.0f", member, score))
			}
			slices.Sort(k.Scores)
		default:
			k.Text, _ = m.redis.Get(name)
		}
		if ttl := m.redis.TTL(name); ttl > 0 {
			k.Until = now + ttl
		}
		c = append(c, k)
	}
	m.holds = at(c, now)
	return c
}

// at is the name of contents at a time.
func at(c explore.Contents, now time.Duration) string { return fmt.Sprint(now, c) }

// cut takes "field=value" apart.
func cut(f string) (name, value string) {
	i := strings.LastIndexByte(f, '=')
	return f[:i], f[i+1:]
}

// plain makes a reply one that [explore.Kind] reads.
func plain(reply any) any {
	switch r := reply.(type) {
	case int:
		return int64(r)
	case []any:
		for i := range r {
			r[i] = plain(r[i])
		}
	}
	return reply
}

// A realServer is a server of its own. Its time is rounded to ticks, and passes by
// lowering every TTL; its TIME does not follow.
type realServer struct {
	client rueidis.Client
	holds  string
}

func newReal(t *testing.T) *realServer {
	t.Helper()
	return &realServer{client: redistest.Run(t).Client(t)}
}

const (
	// dumpText returns {name, TTL, string or hash, …}.
	dumpText = `local all = {}
local names = redis.call('KEYS', '*')
table.sort(names)
for _, name in ipairs(names) do
  all[#all + 1] = name
  all[#all + 1] = redis.call('PTTL', name)
  all[#all + 1] = redis.call('TYPE', name).ok == 'hash' and redis.call('HGETALL', name) or redis.call('GET', name)
end
return all`

	// waitText takes ARGV[1] from every TTL.
	waitText = `for _, name in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', name)
  if left >= 0 then redis.call('PEXPIRE', name, left - ARGV[1]) end
end
return 0`
)

// Run implements [explore.Server].
func (r *realServer) Run(from explore.Contents, now time.Duration, s *scripts.Script, keys, args []string) (any, explore.Contents, error) {
	eval := r.client.B().Eval().Script(s.Text()).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
	return r.do(from, now, now, eval)
}

// Wait implements [explore.Server].
func (r *realServer) Wait(from explore.Contents, now, d time.Duration) (explore.Contents, error) {
	wait := r.client.B().Eval().Script(waitText).Numkeys(0).Arg(strconv.FormatInt(d.Milliseconds(), 10)).Build()
	_, to, err := r.do(from, now, now+d, wait)
	return to, err
}

// do runs a command and reads everything, in one round trip.
func (r *realServer) do(from explore.Contents, now, then time.Duration, command rueidis.Completed) (any, explore.Contents, error) {
	var commands []rueidis.Completed
	if b := r.client.B(); r.holds != at(from, now) {
		commands = append(commands, b.Flushall().Build())
		for _, k := range from {
			if k.Fields == nil {
				commands = append(commands, b.Set().Key(k.Name).Value(k.Text).Build())
			}
			for _, f := range k.Fields {
				name, value := cut(f)
				commands = append(commands, b.Hset().Key(k.Name).FieldValue().FieldValue(name, value).Build())
			}
			if k.Until > 0 {
				commands = append(commands, b.Pexpire().Key(k.Name).Milliseconds((k.Until - now).Milliseconds()).Build())
			}
		}
	}
	commands = append(commands, command, r.client.B().Eval().Script(dumpText).Numkeys(0).Build())
	results := r.client.DoMulti(context.Background(), commands...)
	n := len(results)
	for _, result := range slices.Concat(results[:n-2], results[n-1:]) {
		if err := result.Error(); err != nil {
			return nil, nil, err
		}
	}
	reply, err := results[n-2].ToAny()
	if known, ok := rueidis.IsRedisErr(err); ok {
		reply, err = errors.New(known.Error()), nil
	}
	if err != nil {
		return nil, nil, err
	}
	// How long the holder may keep it.
	if left, ok := reply.(int64); ok && left > 2 {
		reply = ticks(left).Milliseconds()
	}
	if list, ok := reply.([]any); ok {
		for i := range list {
			if left, ok := list[i].(int64); ok && left > 2 {
				list[i] = ticks(left).Milliseconds()
			}
		}
	}
	all, err := results[n-1].ToArray()
	if err != nil {
		return nil, nil, err
	}
	var c explore.Contents
	for i := 0; i < len(all); i += 3 {
		var k explore.Key
		k.Name, _ = all[i].ToString()
		if left, _ := all[i+1].ToInt64(); left >= 0 {
			k.Until = then + ticks(left)
		}
		if k.Text, err = all[i+2].ToString(); err != nil {
			pairs, err := all[i+2].AsStrMap()
			if err != nil {
				return nil, nil, err
			}
			for name, value := range pairs {
				k.Fields = append(k.Fields, name+"="+value)
			}
			slices.Sort(k.Fields)
		}
		c = append(c, k)
	}
	r.holds = at(c, then)
	return reply, c, nil
}

// ticks rounds milliseconds that the server has left, up.
func ticks(left int64) time.Duration {
	return (time.Duration(left)*time.Millisecond + explore.Tick - 1).Truncate(explore.Tick)
}
