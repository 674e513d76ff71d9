package bench

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/scripts"
)

// The scripts of the read side of RReadWriteLock, by what they do. Each hold has a key
// of its own besides the count of its owner in the lock's hash.
var (
	redissonReadTake = scripts.New("redisson_read_take", `
local mode = redis.call('HGET', KEYS[1], 'mode')
if not mode then
  redis.call('HSET', KEYS[1], 'mode', 'read', ARGV[2], 1)
  redis.call('SET', KEYS[2] .. ':1', 1, 'PX', ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return nil
end
if mode == 'read' or mode == 'write' and redis.call('HEXISTS', KEYS[1], ARGV[3]) == 1 then
  local hold = redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
  redis.call('SET', KEYS[2] .. ':' .. hold, 1, 'PX', ARGV[1])
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[1])))
  return nil
end
return redis.call('PTTL', KEYS[1])`)

	// The lock is to live as long as the longest hold that is left, which takes a look
	// at each of them.
	redissonReadRelease = scripts.New("redisson_read_release", `
local latch = redis.call('GET', KEYS[5])
if latch then return tonumber(latch) end
local mode = redis.call('HGET', KEYS[1], 'mode')
if not mode then
  redis.call(ARGV[3], KEYS[2], ARGV[1])
  redis.call('SET', KEYS[5], 1, 'PX', ARGV[4])
  return nil
end
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return nil end
local holds = redis.call('HINCRBY', KEYS[1], ARGV[2], -1)
if holds == 0 then redis.call('HDEL', KEYS[1], ARGV[2]) end
redis.call('DEL', KEYS[3] .. ':' .. (holds + 1))
if redis.call('HLEN', KEYS[1]) > 1 then
  local longest = 0
  local all = redis.call('HGETALL', KEYS[1])
  for f = 1, #all, 2 do
    for hold = tonumber(all[f + 1]) or 0, 1, -1 do
      longest = math.max(longest, redis.call('PTTL', KEYS[4] .. ':' .. all[f] .. ':rwlock_timeout:' .. hold))
    end
  end
  if longest > 0 then redis.call('PEXPIRE', KEYS[1], longest) end
  if longest > 0 or mode == 'write' then
    redis.call('SET', KEYS[5], 0, 'PX', ARGV[4])
    return 0
  end
end
redis.call('DEL', KEYS[1])
redis.call(ARGV[3], KEYS[2], ARGV[1])
redis.call('SET', KEYS[5], 1, 'PX', ARGV[4])
return 1`)

	// Keys come in pairs, and for each pair a number of owners and these.
	redissonReadRenew = scripts.New("redisson_read_renew", `
local verdicts, at = {}, 2
for k = 1, #KEYS, 2 do
  local found = 0
  for o = at + 1, at + tonumber(ARGV[at]) do
    local holds = redis.call('HGET', KEYS[k], ARGV[o])
    if holds then
      found = 1
      for hold = 1, tonumber(holds) do
        redis.call('PEXPIRE', KEYS[k + 1] .. ':' .. ARGV[o] .. ':rwlock_timeout:' .. hold, ARGV[1])
      end
    end
  end
  at = at + tonumber(ARGV[at]) + 1
  if found == 1 then redis.call('PEXPIRE', KEYS[k], ARGV[1]) end
  verdicts[#verdicts + 1] = found
end
return verdicts`)
)

// redissonReader is one Java thread at the read side of one lock, with one hold at
// most. It is its own Hold.
type redissonReader struct {
	client                *redissonClient
	name, owner, channel  string
	holds, prefix, millis string // holds: what the keys of its holds begin with, prefix: what those of all do
	takeKeys, takeArgs    []string
	releaseArgs           []string
}

func (c *redissonClient) Reader(name string) (Locker, error) {
	l := &redissonReader{
		client: c, name: name, owner: c.thread(), channel: "redisson_rwlock:{" + name + "}",
		prefix: "{" + name + "}", millis: strconv.FormatInt(c.lease.Milliseconds(), 10),
	}
	l.holds = l.prefix + ":" + l.owner + ":rwlock_timeout"
	l.takeKeys, l.takeArgs = []string{name, l.holds}, []string{l.millis, l.owner, l.owner + ":write"}
	l.releaseArgs = []string{"0", l.owner, "PUBLISH", latchLife}
	return l, nil
}

func (l *redissonReader) Lock(ctx context.Context) (Hold, error) {
	if err := l.client.take(ctx, l, l.channel); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *redissonReader) try(ctx context.Context) (taken bool, left time.Duration, err error) {
	ms, err := redissonReadTake.Exec(ctx, l.client.redis, l.takeKeys, l.takeArgs).AsInt64()
	if rueidis.IsRedisNil(err) {
		l.client.mu.Lock()
		l.client.reading[l] = struct{}{}
		l.client.mu.Unlock()
		return true, 0, nil
	}
	return false, time.Duration(ms) * time.Millisecond, err
}

// Unlock succeeds with 0, too: others read on.
func (l *redissonReader) Unlock(ctx context.Context) error {
	c := l.client
	c.mu.Lock()
	delete(c.reading, l)
	c.mu.Unlock()
	latch := latchKey(l.name)
	_, err := redissonReadRelease.Exec(ctx, c.redis,
		[]string{l.name, l.channel, l.holds, l.prefix, latch}, l.releaseArgs).AsInt64()
	if rueidis.IsRedisNil(err) {
		return errGone
	}
	if err == nil {
		c.forget(ctx, latch)
	}
	return err
}

// renewReaders renews all holds of readers, those of one lock together.
func (c *redissonClient) renewReaders(ctx context.Context) {
	locks := map[string][]*redissonReader{}
	c.mu.Lock()
	for l := range c.reading {
		locks[l.name] = append(locks[l.name], l)
	}
	c.mu.Unlock()
	held := make([][]*redissonReader, 0, len(locks))
	for _, readers := range locks {
		held = append(held, readers)
	}
	for batch := range slices.Chunk(held, renewBatch) {
		var keys []string
		args := []string{batch[0][0].millis}
		for _, readers := range batch {
			keys = append(keys, readers[0].name, readers[0].prefix)
			args = append(args, strconv.Itoa(len(readers)))
			for _, l := range readers {
				args = append(args, l.owner)
			}
		}
		verdicts, err := redissonReadRenew.Exec(ctx, c.redis, keys, args).AsIntSlice()
		if err != nil {
			continue // at the next tick
		}
		c.mu.Lock()
		for i, v := range verdicts {
			if v == 0 {
				for _, l := range batch[i] {
					delete(c.reading, l)
				}
			}
		}
		c.mu.Unlock()
	}
}
