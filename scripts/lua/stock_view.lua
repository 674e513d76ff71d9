-- stock_view.lua: read what a bucket has, and which of some orders.
--
-- KEYS[1]  bucket hash
-- KEYS[2]  orders hash
-- KEYS[3]  live orders by the end of their time
-- KEYS[4]  expired orders that nobody has acknowledged
-- ARGV[1]  id of the stock
-- ARGV[i]  each of the orders, from the second argument on
--
-- returns  {{free, reserved, tentative, sold, added, live orders, those of them
--          whose end is past, expired ones not acknowledged, fields of the orders
--          hash, units given, units taken, how often units were put on sale,
--          milliseconds until the last tentative order is decided},
--          {bucket, number, units, …} of transfers not known to have arrived,
--          {1 or 0 for each order: whether it is there}}
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: it only reads
-- source   our own

local found = redis.call('HMGET', KEYS[1], 'id', 'free', 'reserved', 'tentative', 'sold', 'added',
  'given', 'taken', 'raised', 'undecided', 'transit')
if found[1] ~= ARGV[1] then
  return redis.error_reply('NOSTOCK the bucket is missing, or belongs to another stock of this name')
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function number(i)
  return tonumber(found[i] or 0)
end
local open = {}
if number(11) ~= 0 then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    local bucket = string.match(all[i], '^to:(%d+)$')
    if bucket then
      local n, units = string.match(all[i + 1], '^(%d+) (%d+)$')
      open[#open + 1], open[#open + 2], open[#open + 3] = tonumber(bucket), tonumber(n), tonumber(units)
    end
  end
end
local there = {}
for i = 2, #ARGV do
  there[i - 1] = redis.call('HEXISTS', KEYS[2], 'o:' .. ARGV[i])
end
return {
  {
    number(2), number(3), number(4), number(5), number(6), redis.call('ZCARD', KEYS[3]),
    redis.call('ZCOUNT', KEYS[3], '-inf', string.format('%.0f', now)), redis.call('ZCARD', KEYS[4]), redis.call('HLEN', KEYS[2]),
    number(7), number(8), number(9), number(10) - now
  }, open, there
}
