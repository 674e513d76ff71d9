-- stock_arrived.lua: note that a transfer has arrived, after stock_take.
--
-- KEYS[1]  bucket hash of the sender
-- ARGV[1]  id of the stock
-- ARGV[2]  bucket that has taken it
-- ARGV[3]  number of the transfer
--
-- returns  1 noted; 0 it was noted before
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: numbers are not used again
-- source   our own

local found = redis.call('HMGET', KEYS[1], 'id', 'to:' .. ARGV[2])
if found[1] ~= ARGV[1] then
  return redis.error_reply('NOSTOCK the bucket is missing, or belongs to another stock of this name')
end
local number, units = string.match(found[2] or '', '^(%d+) (%d+)$')
if number ~= ARGV[3] then
  return 0
end
redis.call('HDEL', KEYS[1], 'to:' .. ARGV[2])
redis.call('HINCRBY', KEYS[1], 'transit', '-' .. units)
return 1
