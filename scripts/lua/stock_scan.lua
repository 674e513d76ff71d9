-- stock_scan.lua: read a part of all orders that are remembered.
--
-- KEYS[1]  bucket hash
-- KEYS[2]  orders hash
-- ARGV[1]  id of the stock
-- ARGV[2]  where to go on, 0 at first
-- ARGV[3]  about how many
--
-- returns  {now, where to go on or 0, {field, value, …}}, now in milliseconds since
--          1970; an order that is there all the while is read at least once
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: it only reads
-- source   our own

if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then
  return redis.error_reply('NOSTOCK the bucket is missing, or belongs to another stock of this name')
end
local time = redis.call('TIME')
local part = redis.call('HSCAN', KEYS[2], ARGV[2], 'COUNT', ARGV[3])
return { tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000), part[1], part[2] }
