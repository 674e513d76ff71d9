-- rwlock_prune.lua: take readers out of the lock whose holds have ended. Every key that
-- it judges by is declared: while a slot moves it is refused, and judges nobody.
--
-- KEYS[1]  lock hash: mode = read or write, owner = number of holds of each reader
-- KEYS[k]  from 2 on: keys of holds, those of one reader after those of another
-- ARGV[1]  channel of release messages
-- ARGV[2]  PUBLISH, SPUBLISH, or BOTH
-- ARGV[i]  from 3 on: owner, and
-- ARGV[i+1]  number of holds of the owner, which is the number of its keys
--
-- returns  {number of readers taken out, when the first of the others that were looked
--          at may end, milliseconds; -1 not known, -2 the lock is free}
-- twice    harmless: a repeat finds nobody to take out
-- source   the end of Redisson's RedissonReadLock.unlockInnerAsync; differs: no key that
--          is not declared, a few readers at a time. It alone lowers the TTL of the
--          hash, never below that of any hold

if redis.call('HGET', KEYS[1], 'mode') ~= 'read' then
  return { 0, redis.call('EXISTS', KEYS[1]) == 0 and -2 or -1 }
end
local endless = 9007199254740991
local k, gone, live, first, last = 2, 0, 0, endless, 0
for i = 3, #ARGV, 2 do
  local ends = -2
  for _ = 1, tonumber(ARGV[i + 1]) do
    local left = redis.call('PTTL', KEYS[k])
    ends = math.max(ends, left == -1 and endless or left)
    k = k + 1
  end
  -- A reader with another number of holds has keys that were not declared.
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    if ends == -2 then
      redis.call('HDEL', KEYS[1], ARGV[i])
      gone = gone + 1
    else
      live, first, last = live + 1, math.min(first, ends), math.max(last, ends, 1)
    end
  end
end

local rest = redis.call('HLEN', KEYS[1]) - 1
local told = rest == 0
if rest == 0 then
  redis.call('DEL', KEYS[1])
elseif rest == live and last < endless then
  -- A hold that was long and is no more has left its TTL. Who waits may sleep on it.
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 or left > last + 1000 then
    redis.call('PEXPIRE', KEYS[1], last)
    told = true
  end
end
if told then
  if ARGV[2] ~= 'SPUBLISH' then
    redis.call('PUBLISH', ARGV[1], '0')
  end
  if ARGV[2] ~= 'PUBLISH' then
    redis.call('SPUBLISH', ARGV[1], '0')
  end
end
return { gone, rest == 0 and -2 or first < endless and first or -1 }
