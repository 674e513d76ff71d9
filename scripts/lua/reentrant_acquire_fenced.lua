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
-- returns  taken: the token as a string, or {the first token, number of tokens} if
--          there are several; else how long the holder may still keep it,
--          milliseconds, -1 for no end
-- errors   WRONGTYPE if a key holds other data
-- twice    harmless: a repeat finds the owner there and reads the last token of
--          its block back, since nobody else mints while the lock is held
-- source   Redisson, RedissonFencedLock; differs: a token is the larger of the
--          last one plus 1 and the server's time in microseconds, so that tokens
--          rise also when the counter was lost; re-entry mints none; a counter
--          found without a TTL keeps none, since it is Redisson's; another one gets
--          a fresh retention with the first token of each 64th of it

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
  local last = redis.call('GET', KEYS[2])
  if last and #last <= 16 and not string.find(last, '%D') and (tonumber(last) or 0) > 0 then
    if left < tonumber(ARGV[2]) then
      redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
    return last
  end
  mine = true
end

-- The clock leads, as a rule: so the counter is set first and looked at then.
local time = redis.call('TIME')
local first = time[1] .. string.sub('00000' .. time[2], -6)
local now = tonumber(first)
local block = tonumber(ARGV[3])
local upto = block == 1 and first or string.format('%.0f', now + block - 1)
local last = redis.call('SET', KEYS[2], upto, 'KEEPTTL', 'GET')
local fresh = true
if last then
  local before = tonumber(last)
  if not before or before >= 9007199254740991 or #last > 16 or string.find(last, '%D') then
    redis.call('SET', KEYS[2], last, 'KEEPTTL')
    return redis.error_reply('WRONGTYPE the token counter is no number below 2^53')
  end
  local part = ARGV[4] * 1000 / 64
  fresh = math.floor(before / part) ~= math.floor(now / part)
  if before >= now then
    -- No block is reserved then: tokens that run ahead of the clock could be minted
    -- again after the counter was lost.
    block, fresh = 1, true
    first = string.format('%.0f', before + 1)
    upto = first
    redis.call('SET', KEYS[2], upto, 'KEEPTTL')
  end
end
if ARGV[4] == '-1' then
  redis.call('SET', KEYS[2], upto)
elseif not last or fresh and redis.call('PTTL', KEYS[2]) ~= -1 then
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end

if mine then
  redis.call('PEXPIRE', KEYS[1], math.max(left, tonumber(ARGV[2])))
else
  redis.call('HSET', KEYS[1], ARGV[1], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
if block == 1 then
  return first
end
return { first, block }
