-- reentrant_release_receipt.lua: give back all holds of an owner, tell the
-- waiters, and remember that it was done.
--
-- KEYS[1]  lock hash: field = owner, value = number of holds
-- KEYS[2]  receipt of this session for this lock: the highest released sequence
-- ARGV[1]  owner
-- ARGV[2]  channel of release messages
-- ARGV[3]  PUBLISH, SPUBLISH, or BOTH
-- ARGV[4]  how long the lock is to stay taken, milliseconds; 0 not at all
-- ARGV[5]  sequence of the owner within its session
-- ARGV[6]  how long to remember, milliseconds
--
-- returns  1 + n released, and n that listen to this node were told, none by a
--          copy that only finds the receipt; 0 nobody has the lock; -1 another
--          owner has it
-- errors   WRONGTYPE if a key holds other data
-- twice    harmless: a repeat finds the receipt and answers that it is released
-- source   Redisson's unlock latch; differs: one key for a session and a lock,
--          not one for each release

local last = redis.call('GET', KEYS[2]) or '0'
if not string.match(last, '^%d+$') then
  return redis.error_reply('WRONGTYPE the receipt is no number')
end
last = tonumber(last)
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  if last >= tonumber(ARGV[5]) then
    return 1
  end
  return -redis.call('EXISTS', KEYS[1])
end
if tonumber(ARGV[4]) > 0 then
  redis.call('HSET', KEYS[1], ARGV[1] .. ':released', 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
if last < tonumber(ARGV[5]) then
  redis.call('SET', KEYS[2], ARGV[5], 'PX', ARGV[6])
end
local heard = 0
if ARGV[3] ~= 'SPUBLISH' then
  heard = redis.call('PUBLISH', ARGV[2], '0')
end
if ARGV[3] ~= 'PUBLISH' then
  heard = heard + redis.call('SPUBLISH', ARGV[2], '0')
end
return 1 + heard
