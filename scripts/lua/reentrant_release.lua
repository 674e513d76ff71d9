-- reentrant_release.lua: give back all holds of an owner and tell the waiters.
--
-- KEYS[1]  lock hash: field = owner, value = number of holds
-- ARGV[1]  owner
-- ARGV[2]  channel of release messages
-- ARGV[3]  PUBLISH, SPUBLISH, or BOTH
-- ARGV[4]  how long the lock is to stay taken, milliseconds; 0 not at all
--
-- returns  1 + n released, and n that listen to this node were told; 0 nobody has
--          the lock; -1 another owner has it
-- twice    harmless: a repeat finds nothing of the owner and changes nothing
-- source   Redisson, RedissonLock.unlockInnerAsync; differs: a lock that stays
--          taken gets the field owner:released, so that a late command of the
--          owner does not find the owner's

if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  return -redis.call('EXISTS', KEYS[1])
end
if tonumber(ARGV[4]) > 0 then
  redis.call('HSET', KEYS[1], ARGV[1] .. ':released', 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
local heard = 0
if ARGV[3] ~= 'SPUBLISH' then
  heard = redis.call('PUBLISH', ARGV[2], '0')
end
if ARGV[3] ~= 'PUBLISH' then
  heard = heard + redis.call('SPUBLISH', ARGV[2], '0')
end
return 1 + heard
