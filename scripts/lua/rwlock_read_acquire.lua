-- rwlock_read_acquire.lua: let a reader in, unless somebody writes, or a writer
-- waits and this reader has not waited longer.
--
-- KEYS[1]  lock hash: mode = read or write, owner = 1 of each reader,
--          owner:write = number of holds of the writer
-- KEYS[2]  key of this hold, which lives as long as its lease
-- KEYS[3]  writers that wait: session, and when its word ends
-- KEYS[4]  sessions with readers that wait
-- KEYS[5]  sessions whose turn it is: they waited when the last writer left
-- ARGV[1]  owner
-- ARGV[2]  lease, milliseconds
-- ARGV[3]  field of the writer that this reader belongs to, or empty
-- ARGV[4]  session
-- ARGV[5]  1 if the reader waits when it is refused, else 0
-- ARGV[6]  1 if the reader stands back for writers that wait, else 0
-- ARGV[7]  1 if it is still the session's turn after this reader, else 0
--
-- returns  -2 taken; -3 the writer that it belongs to does not hold the lock; else
--          how long it may be before it is worth asking again, milliseconds, -1 for
--          no end
-- errors   WRONGTYPE if a key holds other data, or another kind of lock
-- twice    harmless: a repeat finds the owner there, lifts TTLs to the lease at most,
--          and answers as the first did
-- source   Redisson, RedissonReadLock.tryLockInnerAsync; differs: readers stand back
--          for writers that wait, an owner has one hold, a hash without a mode is not
--          a free lock

local left = redis.call('PTTL', KEYS[1])
local found = {}
if left ~= -2 then
  found = redis.call('HMGET', KEYS[1], 'mode', ARGV[1], ARGV[3])
  if found[1] ~= 'read' and found[1] ~= 'write' then
    return redis.error_reply('WRONGTYPE the key is no read-write lock')
  end
end

local refused = nil
if found[2] then
  refused = nil -- it has the lock
elseif ARGV[3] ~= '' then
  if found[1] ~= 'write' or not found[3] then
    return -3
  end
elseif found[1] == 'write' then
  refused = left
elseif ARGV[6] == '1' then
  local last = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')
  if last[2] and redis.call('SISMEMBER', KEYS[5], ARGV[4]) == 0 then
    local time = redis.call('TIME')
    local rest = tonumber(last[2]) - tonumber(time[1]) * 1000 - math.floor(tonumber(time[2]) / 1000)
    if rest > 0 then
      refused = left >= 0 and math.min(left, rest) or rest
    end
  end
end

if refused then
  if ARGV[5] == '1' then
    -- By pcall: a refusal is to be heard when memory is full, too.
    redis.pcall('SADD', KEYS[4], ARGV[4])
    local stay = (refused < 0 and 5000 or refused) + 1000
    if redis.call('PTTL', KEYS[4]) < stay then
      redis.call('PEXPIRE', KEYS[4], stay)
    end
  end
  return refused
end

local lease = tonumber(ARGV[2])
if not found[2] then
  redis.call('HSET', KEYS[1], 'mode', found[1] or 'read', ARGV[1], 1)
end
if left < lease then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
local hold = redis.call('PTTL', KEYS[2])
if hold == -2 then
  redis.call('SET', KEYS[2], 1, 'PX', ARGV[2])
elseif hold < lease then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
if ARGV[7] == '0' and ARGV[3] == '' then
  -- By pcall: the lock is taken whatever those keys are.
  redis.pcall('SREM', KEYS[4], ARGV[4])
  redis.pcall('SREM', KEYS[5], ARGV[4])
end
return -2
