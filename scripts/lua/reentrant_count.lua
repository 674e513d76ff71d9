-- reentrant_count.lua: set the number of holds of an owner, for a nested acquire
-- or the release of a nested hold.
--
-- KEYS[1]  lock hash: field = owner, value = number of holds
-- ARGV[1]  owner
-- ARGV[2]  number of holds, at least 1
-- ARGV[3]  lease, milliseconds: the TTL of a lock that has none; any other is left
--          as it is, since a lease that is not renewed is to end when it would have
--
-- returns  1 set; 0 nobody has the lock; -1 another owner has it
-- twice    harmless: it sets and does not add
-- source   Redisson, RedissonLock.tryLockInnerAsync and unlockInnerAsync; differs:
--          the count is set, not added to, and the TTL is left alone

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return -redis.call('EXISTS', KEYS[1])
end
-- PEXPIRE first: Redis allows it when memory is full, and the rest after it.
local left = redis.call('PTTL', KEYS[1])
redis.call('PEXPIRE', KEYS[1], left < 0 and ARGV[3] or math.max(left, 1))
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
