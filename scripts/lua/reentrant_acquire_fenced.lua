-- reentrant_acquire_fenced.lua: take the lock for a new owner, if it is free,
-- and mint fencing tokens for the owner and those it is handed over to.
--
-- KEYS[1]  lock hash: field = owner, value = number of holds
-- KEYS[2]  token counter: the last token minted
-- ARGV[1]  owner
-- ARGV[2]  lease, milliseconds
-- ARGV[3]  tokens wanted, at least 1
-- ARGV[4]  retention of the counter, milliseconds; -1 for ever
--
-- returns  {first token as a string, number of tokens} taken; else how long the
--          holder may still keep it, milliseconds, -1 for no end
-- errors   WRONGTYPE if a key holds other data
-- twice    harmless: a repeat finds the owner there and reads the last token of
--          its block back, since nobody else mints while the lock is held
-- source   Redisson, RedissonFencedLock; differs: a token is the larger of the
--          last one plus 1 and the server's time in microseconds, so that tokens
--          rise also when the counter was lost; re-entry mints none; a counter
--          found without a TTL keeps none, since it is Redisson's

local left = redis.call('PTTL', KEYS[1])
local mine = false
if left ~= -2 then
  local found = redis.call('HMGET', KEYS[1], ARGV[1], 'mode')
  if found[2] then
    return redis.error_reply('WRONGTYPE the key is a read-write lock')
  end
  if not found[1] then
    return left
  end
  mine = true
end

local last = redis.call('GET', KEYS[2])
if last and not (#last <= 16 and string.match(last, '^%d+$') and tonumber(last) <= 9007199254740991) then
  return redis.error_reply('WRONGTYPE the token counter is no number below 2^53')
end
if mine and last and tonumber(last) > 0 then
  if left < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return { last, 1 }
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local token = tonumber(last or 0) + 1
local block = 1
if token > 9007199254740991 then
  return redis.error_reply('WRONGTYPE the token counter is no number below 2^53')
end
if token <= now then
  -- Only while the clock leads may a block be reserved: tokens that ran ahead of
  -- it could be minted again after the counter was lost.
  token = now
  block = tonumber(ARGV[3])
end

if mine then
  redis.call('PEXPIRE', KEYS[1], math.max(left, tonumber(ARGV[2])))
else
  redis.call('HSET', KEYS[1], ARGV[1], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
local upto = string.format('%.0f', token + block - 1)
if ARGV[4] == '-1' or (last and redis.call('PTTL', KEYS[2]) == -1) then
  redis.call('SET', KEYS[2], upto)
else
  redis.call('SET', KEYS[2], upto, 'PX', ARGV[4])
end
return { string.format('%.0f', token), block }
