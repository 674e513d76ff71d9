-- stock_view.lua: read what a bucket has.
--
-- KEYS[1]  bucket hash
-- KEYS[2]  orders hash
-- KEYS[3]  live orders by the end of their time
-- KEYS[4]  expired orders that nobody has acknowledged
-- ARGV[1]  id of the stock
--
-- returns  {free, reserved, tentative, sold, added, live orders, those of them
--          whose end is past, expired ones not acknowledged, fields of the orders
--          hash}
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: it only reads
-- source   our own

local found = redis.call('HMGET', KEYS[1], 'id', 'free', 'reserved', 'tentative', 'sold', 'added')
if found[1] ~= ARGV[1] then
  return redis.error_reply('NOSTOCK the bucket is missing, or belongs to another stock of this name')
end
local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
return {
  tonumber(found[2]), tonumber(found[3]), tonumber(found[4]), tonumber(found[5]), tonumber(found[6]),
  redis.call('ZCARD', KEYS[3]), redis.call('ZCOUNT', KEYS[3], '-inf', now),
  redis.call('ZCARD', KEYS[4]), redis.call('HLEN', KEYS[2])
}
