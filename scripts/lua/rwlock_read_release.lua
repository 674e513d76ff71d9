-- rwlock_read_release.lua: give back the hold of a reader. What it costs does not
-- depend on how many others read.
--
-- KEYS[1]  lock hash: mode = read or write, owner = 1 of each reader,
--          owner:write = number of holds of the writer
-- KEYS[2]  key of this hold; left out with the next one while the slot moves
-- KEYS[3]  writers that wait: session, and when its word ends
-- ARGV[1]  owner
-- ARGV[2]  channel of release messages
-- ARGV[3]  PUBLISH, SPUBLISH, or BOTH
--
-- returns  1 released; {1, owner, holds, …} released, the readers that are left are
--          few and all listed: some of them may be dead, with nobody who waits to find
--          out; 0 the owner does not have the lock; -1 a writer has it
-- twice    harmless: a repeat finds nothing of the owner and changes nothing
-- source   Redisson, RedissonReadLock.unlockInnerAsync; differs: it does not go through
--          the holds of all readers

local gone = redis.call('HDEL', KEYS[1], ARGV[1]) == 0
if KEYS[2] then
  redis.call('DEL', KEYS[2])
end
if gone then
  return redis.call('HGET', KEYS[1], 'mode') == 'write' and -1 or 0
end

local rest = redis.call('HLEN', KEYS[1])
local told = false
if rest == 1 then
  redis.call('DEL', KEYS[1])
  told = true
elseif rest > 9 or redis.call('HGET', KEYS[1], 'mode') == 'write' then
  return 1
elseif KEYS[3] then
  local last = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')
  if last[2] then
    local time = redis.call('TIME')
    told = tonumber(last[2]) > tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
end
if told then
  if ARGV[3] ~= 'SPUBLISH' then
    redis.call('PUBLISH', ARGV[2], '0')
  end
  if ARGV[3] ~= 'PUBLISH' then
    redis.call('SPUBLISH', ARGV[2], '0')
  end
  return 1
end
local reply = { 1 }
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if all[i] ~= 'mode' then
    reply[#reply + 1] = all[i]
    reply[#reply + 1] = all[i + 1]
  end
end
return reply
