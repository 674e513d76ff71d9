-- reentrant_acquire.lua: take the lock for a new owner, if it is free.
--
-- KEYS[1]  lock hash: field = owner, value = number of holds
-- ARGV[1]  owner
-- ARGV[2]  lease, milliseconds
--
-- returns  -2 taken; else how long the holder may still keep it, milliseconds,
--          -1 for no end
-- errors   WRONGTYPE if the key is no hash, or is a read-write lock
-- twice    harmless: a repeat finds the owner there, lifts the TTL to the lease
--          at most, and answers as the first did
-- source   Redisson, RedissonLock.tryLockInnerAsync; differs: the count is set,
--          not added to, and the TTL is never lowered

local left = redis.call('PTTL', KEYS[1])
if left == -2 then
  redis.call('HSET', KEYS[1], ARGV[1], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return -2
end
local found = redis.call('HMGET', KEYS[1], ARGV[1], 'mode')
if found[2] then
  return redis.error_reply('WRONGTYPE the key is a read-write lock')
end
if not found[1] then
  return left
end
if left < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return -2
