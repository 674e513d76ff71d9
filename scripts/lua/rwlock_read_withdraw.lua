-- rwlock_read_withdraw.lua: the readers of a session do not wait any longer. If a writer
-- had to let them go first and there is nobody else whom it has to, it is told.
--
-- KEYS[1]  sessions with readers that wait
-- KEYS[2]  sessions of readers whose turn it is
-- ARGV[1]  session
-- ARGV[2]  channel of release messages
-- ARGV[3]  PUBLISH, SPUBLISH, or BOTH
--
-- returns  1 the turn is over; 0 there was none, or it goes on
-- twice    harmless: a repeat finds nothing of the session
-- source   our own

redis.call('SREM', KEYS[1], ARGV[1])
if redis.call('SREM', KEYS[2], ARGV[1]) == 0 or redis.call('EXISTS', KEYS[2]) == 1 then
  return 0
end
if ARGV[3] ~= 'SPUBLISH' then
  redis.call('PUBLISH', ARGV[2], '0')
end
if ARGV[3] ~= 'PUBLISH' then
  redis.call('SPUBLISH', ARGV[2], '0')
end
return 1
