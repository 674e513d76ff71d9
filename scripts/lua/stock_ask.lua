-- stock_ask.lua: see which of many orders are there, and how many units are free.
--
-- KEYS[1]  bucket hash
-- KEYS[2]  orders hash
-- KEYS[3]  live orders by the end of their time
-- ARGV[1]  id of the stock
-- ARGV[i]  each of the orders, from the second argument on
--
-- returns  {units that are free, units that may be, and 1 or 0 for each order}:
--          tentative ones may be, and if an order is past its end any number,
--          which is -1
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: it only reads
-- source   our own

local found = redis.call('HMGET', KEYS[1], 'id', 'free', 'tentative')
if found[1] ~= ARGV[1] then
  return redis.error_reply('NOSTOCK the bucket is missing, or belongs to another stock of this name')
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local free = tonumber(found[2])
local may = free + tonumber(found[3])
if redis.call('ZCOUNT', KEYS[3], '-inf', string.format('%.0f', now)) > 0 then
  may = -1
end
local answers = { free, may }
for i = 2, #ARGV do
  answers[i + 1] = redis.call('HEXISTS', KEYS[2], 'o:' .. ARGV[i])
end
return answers
