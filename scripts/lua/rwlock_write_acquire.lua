-- rwlock_write_acquire.lua: let a writer in, if the lock is free and no readers
-- have a turn; mint fencing tokens for it and those it is handed over to. A writer
-- that waits for readers says so, and new readers stand back.
--
-- KEYS[1]  lock hash: mode = read or write, owner = 1 of each reader,
--          owner:write = number of holds of the writer
-- KEYS[2]  writers that wait: session, and when its word ends
-- KEYS[3]  sessions of readers whose turn it is
-- KEYS[4]  token counter: the last token minted
-- ARGV[1]  owner:write
-- ARGV[2]  lease, milliseconds
-- ARGV[3]  session
-- ARGV[4]  how long the writer's word that it waits is good for, milliseconds; 0 if it
--          does not wait when it is refused
-- ARGV[5]  tokens wanted; 0 none
-- ARGV[6]  retention of the counter, milliseconds; -1 for ever
--
-- returns  {1, first token as a string, number of tokens} taken, {1, '0', 0} without
--          tokens; {0, how long the lock may stay taken, milliseconds, then owner,
--          holds, … of some readers, of all if there are few} readers have it; else
--          how long a writer may keep it or the turn of readers lasts, milliseconds,
--          -1 for no end
-- errors   WRONGTYPE if a key holds other data, or another kind of lock
-- twice    harmless: a repeat finds the owner there and reads the last token of its
--          block back, since nobody else mints while the lock is held
-- source   Redisson, RedissonWriteLock.tryLockInnerAsync; differs: see above; a nested
--          hold is another script's; a hash without a mode is not a free lock. Tokens
--          as in reentrant_acquire_fenced.lua

local left = redis.call('PTTL', KEYS[1])
local field = ARGV[1]
local mode, mine = nil, false
if left ~= -2 then
  local found = redis.call('HMGET', KEYS[1], 'mode', field)
  mode = found[1]
  if mode ~= 'read' and mode ~= 'write' then
    return redis.error_reply('WRONGTYPE the key is no read-write lock')
  end
  mine = mode == 'write' and found[2]
  if mode == 'write' and not mine then
    return left
  end
else
  left = redis.call('PTTL', KEYS[3])
end

if not mine and left ~= -2 then
  if ARGV[4] ~= '0' then
    local time = redis.call('TIME')
    local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
    -- By pcall: a refusal is to be heard when memory is full, too.
    redis.pcall('ZADD', KEYS[2], now + tonumber(ARGV[4]), ARGV[3])
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
    if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[4]) then
      redis.call('PEXPIRE', KEYS[2], ARGV[4])
    end
  end
  if not mode then
    return left
  end
  local reply = { 0, left }
  local cursor, all = '0', nil
  repeat
    if redis.call('HLEN', KEYS[1]) <= 17 then
      all = redis.call('HGETALL', KEYS[1])
    else
      local part = redis.call('HSCAN', KEYS[1], cursor, 'COUNT', 128)
      cursor, all = part[1], part[2]
    end
    for i = 1, #all, 2 do
      if all[i] ~= 'mode' and #reply < 34 then
        reply[#reply + 1] = all[i]
        reply[#reply + 1] = all[i + 1]
      end
    end
  until #reply > 2 or cursor == '0'
  return reply
end

local token, block, upto = '0', 0, nil
if ARGV[5] ~= '0' then
  local last = redis.call('GET', KEYS[4])
  if last and not (#last <= 16 and string.match(last, '^%d+$') and tonumber(last) <= 9007199254740991) then
    return redis.error_reply('WRONGTYPE the token counter is no number below 2^53')
  end
  if mine and last and tonumber(last) > 0 then
    token, block = last, 1
  else
    local time = redis.call('TIME')
    local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
    local first = tonumber(last or 0) + 1
    block = 1
    if first > 9007199254740991 then
      return redis.error_reply('WRONGTYPE the token counter is no number below 2^53')
    end
    if first <= now then
      -- Only while the clock leads may a block be reserved: tokens that ran ahead of
      -- it could be minted again after the counter was lost.
      first = now
      block = tonumber(ARGV[5])
    end
    token, upto = string.format('%.0f', first), string.format('%.0f', first + block - 1)
  end
end

if not mine then
  redis.call('HSET', KEYS[1], 'mode', 'write', field, 1)
end
if left < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
if upto then
  if ARGV[6] == '-1' or redis.call('PTTL', KEYS[4]) == -1 then
    redis.call('SET', KEYS[4], upto)
  else
    redis.call('SET', KEYS[4], upto, 'PX', ARGV[6])
  end
end
redis.pcall('ZREM', KEYS[2], ARGV[3]) -- the lock is taken whatever that key is
return { 1, token, block }
