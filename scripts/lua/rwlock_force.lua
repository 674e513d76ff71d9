-- rwlock_force.lua: remove the lock, whoever has it, if it is in this mode, and tell all
-- who wait.
--
-- KEYS[1]  lock hash: mode = read or write, owner = number of holds of each reader,
--          owner:write = number of holds of the writer
-- ARGV[1]  read or write
-- ARGV[2]  channel of release messages
-- ARGV[3]  PUBLISH, SPUBLISH, or BOTH
-- ARGV[4]  message: 0 for read, 1 for write
--
-- returns  1 removed; 0 nobody had it in this mode
-- errors   WRONGTYPE if the key is no hash, or is another kind of lock
-- twice    not harmless: a repeat may remove the lock of the next owner, so it is never
--          sent again by itself
-- source   Redisson, RedissonReadLock.forceUnlockAsync and RedissonWriteLock's; differs:
--          other data is left alone

local mode = redis.call('HGET', KEYS[1], 'mode')
if not mode and redis.call('EXISTS', KEYS[1]) == 1 then
  return redis.error_reply('WRONGTYPE the key is no read-write lock')
end
if mode ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
if ARGV[3] ~= 'SPUBLISH' then
  redis.call('PUBLISH', ARGV[2], ARGV[4])
end
if ARGV[3] ~= 'PUBLISH' then
  redis.call('SPUBLISH', ARGV[2], ARGV[4])
end
return 1
