-- stock_get.lua: read an order.
--
-- KEYS[1]  bucket hash
-- KEYS[2]  orders hash: o:ORDER, value = "state units refunded time buyer"
-- ARGV[1]  id of the stock
-- ARGV[2]  order
--
-- returns  {word, 0, now, state, units, refunded, at, buyer, 0}, the times in
--          milliseconds since 1970; words are ok, unknown
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: it only reads
-- source   our own

if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then
  return redis.error_reply('NOSTOCK the bucket is missing, or belongs to another stock of this name')
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local text = redis.call('HGET', KEYS[2], 'o:' .. ARGV[2])
if not text then
  return { 'unknown', 0, now, '', 0, 0, 0, '', 0 }
end
local state, units, refunded, at, buyer = string.match(text, '^(%a) (%d+) (%d+) (%d+) (.*)$')
if units == '0' then
  return { 'unknown', 0, now, '', 0, 0, 0, '', 0 }
end
if (state == 't' or state == 'r') and tonumber(at) <= now then
  state = 'e'
end
return { 'ok', 0, now, state, tonumber(units), tonumber(refunded), tonumber(at), buyer, 0 }
