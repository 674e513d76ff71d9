-- rwlock_downgrade.lua: make a writer a reader, and tell all who wait: other readers
-- may come in.
--
-- KEYS[1]  lock hash: mode = read or write, owner = 1 of each reader,
--          owner:write = number of holds of the writer
-- KEYS[2]  key of the reader's hold, which lives as long as its lease; left out, with
--          the next two, while the slot moves: then it has been written before
-- KEYS[3]  sessions with readers that wait
-- KEYS[4]  sessions of readers whose turn it is
-- ARGV[1]  owner
-- ARGV[2]  lease, milliseconds
-- ARGV[3]  channel of release messages
-- ARGV[4]  PUBLISH, SPUBLISH, or BOTH
-- ARGV[5]  how long the turn of the readers lasts, milliseconds
--
-- returns  1 the owner is a reader; 0 nobody has the lock; -1 another owner has it
-- twice    harmless: a repeat finds the reader there, and lifts TTLs to the lease at
--          most
-- source   our own; Redisson's writer takes the read lock and then gives the write lock
--          back, which wakes nobody

local writer = ARGV[1] .. ':write'
local found = redis.call('HMGET', KEYS[1], writer, ARGV[1])
if not found[1] and not found[2] then
  return -redis.call('EXISTS', KEYS[1])
end
-- PEXPIRE first: Redis allows it when memory is full, and the rest after it.
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])))
if KEYS[2] then
  local left = redis.call('PTTL', KEYS[2])
  if left == -2 then
    redis.call('SET', KEYS[2], 1, 'PX', ARGV[2])
  elseif left < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[2], ARGV[2])
  end
end
if not found[1] then
  return 1
end
redis.call('HSET', KEYS[1], 'mode', 'read', ARGV[1], 1)
redis.call('HDEL', KEYS[1], writer)
if KEYS[4] and redis.call('EXISTS', KEYS[3]) == 1 then
  redis.call('RENAME', KEYS[3], KEYS[4])
  redis.call('PEXPIRE', KEYS[4], ARGV[5])
end
if ARGV[4] ~= 'SPUBLISH' then
  redis.call('PUBLISH', ARGV[3], '1')
end
if ARGV[4] ~= 'PUBLISH' then
  redis.call('SPUBLISH', ARGV[3], '1')
end
return 1
