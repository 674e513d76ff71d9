-- reentrant_count.lua: set the number of holds of an owner, for a nested acquire
-- or the release of a nested hold.
--
-- KEYS[1]  lock hash: field = owner, value = number of holds
-- ARGV[1]  owner
-- ARGV[2]  number of holds, at least 1
-- ARGV[3]  lease, milliseconds: the TTL is lifted to it, never lowered
--
-- returns  1 set; 0 nobody has the lock; -1 another owner has it
-- twice    harmless: it sets and does not add
-- source   Redisson, RedissonLock.tryLockInnerAsync and unlockInnerAsync; differs:
--          the count is set, not added to, and the TTL is never lowered

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return -redis.call('EXISTS', KEYS[1])
end
-- PEXPIRE first: Redis allows it when memory is full, and the rest after it.
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[3])))
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
