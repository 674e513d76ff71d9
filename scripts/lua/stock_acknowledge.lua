-- stock_acknowledge.lua: take expired orders off the list.
--
-- KEYS[1]  bucket hash
-- KEYS[2]  expired orders that nobody has acknowledged
-- ARGV[1]  id of the stock
-- ARGV[i]  each of the orders, from the second argument on
--
-- returns  how many were on the list
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: an order expires once
-- source   our own

if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then
  return redis.error_reply('NOSTOCK the bucket is missing, or belongs to another stock of this name')
end
local count = 0
for i = 2, #ARGV do
  count = count + redis.call('ZREM', KEYS[2], ARGV[i])
end
return count
