-- stock_resize.lua: say in how many buckets free units rest.
--
-- KEYS[1]  stock hash
-- ARGV[1]  id of the stock
-- ARGV[2]  number of buckets, the first ones
--
-- returns  1 noted; 0 there is no such stock
-- errors   WRONGTYPE if the key holds other data
-- twice    harmless, but a late copy undoes a later change: it matters little, for
--          units can be had wherever they rest
-- source   our own

if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'live', ARGV[2])
return 1
