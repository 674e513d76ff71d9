-- reentrant_release.lua: give back all holds of an owner and tell the waiters.
--
-- KEYS[1]  lock hash: field = owner, value = number of holds
-- ARGV[1]  owner
-- ARGV[2]  channel of release messages
-- ARGV[3]  PUBLISH, SPUBLISH, or BOTH
-- ARGV[4]  how long the lock is to stay taken, milliseconds; 0 not at all
--
-- returns  1 released; 0 nobody has the lock; -1 another owner has it
-- twice    harmless: a repeat finds nothing and changes nothing; with ARGV[4] > 0
--          it finds the owner again and lets the TTL be
-- source   Redisson, RedissonLock.unlockInnerAsync

local keep = tonumber(ARGV[4])
if keep > 0 then
  if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return -redis.call('EXISTS', KEYS[1])
  end
  if redis.call('PTTL', KEYS[1]) > keep then
    redis.call('PEXPIRE', KEYS[1], keep)
  end
elseif redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  return -redis.call('EXISTS', KEYS[1])
end
if ARGV[3] ~= 'SPUBLISH' then
  redis.call('PUBLISH', ARGV[2], '0')
end
if ARGV[3] ~= 'PUBLISH' then
  redis.call('SPUBLISH', ARGV[2], '0')
end
return 1
