-- rwlock_write_withdraw.lua: a writer does not wait any longer. If it was the last,
-- readers that stood back are told.
--
-- KEYS[1]  writers that wait: session, and when its word ends
-- ARGV[1]  session
-- ARGV[2]  channel of release messages
-- ARGV[3]  PUBLISH, SPUBLISH, or BOTH
--
-- returns  1 it was the last; 0 it was not
-- twice    harmless: a repeat finds nothing of the session
-- source   our own

if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if last[2] then
  local time = redis.call('TIME')
  if tonumber(last[2]) > tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) then
    return 0
  end
end
if ARGV[3] ~= 'SPUBLISH' then
  redis.call('PUBLISH', ARGV[2], '1')
end
if ARGV[3] ~= 'PUBLISH' then
  redis.call('SPUBLISH', ARGV[2], '1')
end
return 1
