-- rwlock_hold_renew.lua: give the key of a reader's hold a fresh lease, if it is there:
-- the first half of a renewal while the slot moves and the two keys of the hold lie on
-- two nodes. reentrant_renew.lua does the second half, for the lock hash; in this
-- order the hash never ends before the hold.
--
-- KEYS[1]  key of the hold
-- ARGV[1]  lease, milliseconds: the TTL is lifted to it, never lowered
--
-- returns  1 renewed; 0 the hold is no more
-- twice    harmless
-- source   our own

local left = redis.call('PTTL', KEYS[1])
if left == -2 then
  return 0
end
if left < tonumber(ARGV[1]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return 1
