-- stock_open.lua: open a stock all of whose buckets are made.
--
-- KEYS[1]  stock hash
-- ARGV[1]  id of the stock
--
-- returns  1 it is open; 0 there is no such stock
-- errors   WRONGTYPE if the key holds other data
-- twice    harmless: open stays open
-- source   our own

if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'state', 'open')
return 1
