-- rwlock_write_release.lua: give back all holds of a writer and tell all who wait.
-- Readers that wait have their turn before the next writer.
--
-- KEYS[1]  lock hash: mode = read or write, owner = 1 of each reader,
--          owner:write = number of holds of the writer
-- KEYS[2]  sessions with readers that wait; left out with the next one while the slot
--          moves
-- KEYS[3]  sessions of readers whose turn it is
-- ARGV[1]  owner:write
-- ARGV[2]  channel of release messages
-- ARGV[3]  PUBLISH, SPUBLISH, or BOTH
-- ARGV[4]  how long the lock is to stay taken, milliseconds; 0 not at all
--          while reads of the writer's own are left it stays taken by them alone
-- ARGV[5]  how long the turn of the readers lasts, milliseconds
--
-- returns  1 released; 0 nobody has the lock; -1 another owner has it
-- twice    harmless: a repeat finds nothing of the owner and changes nothing
-- source   Redisson, RedissonWriteLock.unlockInnerAsync; differs: the turn of readers,
--          and a lock that stays taken by the field owner:write:released

if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  return -redis.call('EXISTS', KEYS[1])
end
if ARGV[4] ~= '0' and redis.call('HLEN', KEYS[1]) <= 1 then
  redis.call('HSET', KEYS[1], ARGV[1] .. ':released', 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
else
  if redis.call('HLEN', KEYS[1]) == 1 then
    redis.call('DEL', KEYS[1])
  else -- the writer's own reads
    redis.call('HSET', KEYS[1], 'mode', 'read')
  end
  if KEYS[3] and redis.call('EXISTS', KEYS[2]) == 1 then
    redis.call('RENAME', KEYS[2], KEYS[3])
    redis.call('PEXPIRE', KEYS[3], ARGV[5])
  end
end
if ARGV[3] ~= 'SPUBLISH' then
  redis.call('PUBLISH', ARGV[2], '1')
end
if ARGV[3] ~= 'PUBLISH' then
  redis.call('SPUBLISH', ARGV[2], '1')
end
return 1
