-- reentrant_force.lua: remove the lock, whoever has it, and tell the waiters.
--
-- KEYS[1]  lock hash: field = owner, value = number of holds
-- ARGV[1]  channel of release messages
-- ARGV[2]  PUBLISH, SPUBLISH, or BOTH
--
-- returns  1 removed; 0 nobody had it
-- errors   WRONGTYPE if the key is no hash, or is a read-write lock
-- twice    not harmless: a repeat may remove the lock of the next owner, so it is
--          never sent again by itself
-- source   Redisson, RedissonLock.forceUnlockAsync; differs: other data is left alone

local mode = redis.call('HEXISTS', KEYS[1], 'mode')
if mode == 1 then
  return redis.error_reply('WRONGTYPE the key is a read-write lock')
end
if redis.call('DEL', KEYS[1]) == 0 then
  return 0
end
if ARGV[2] ~= 'SPUBLISH' then
  redis.call('PUBLISH', ARGV[1], '0')
end
if ARGV[2] ~= 'PUBLISH' then
  redis.call('SPUBLISH', ARGV[1], '0')
end
return 1
