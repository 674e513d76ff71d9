-- stock_bucket.lua: make a bucket of a stock that is being initialised, once.
--
-- KEYS[1]  bucket hash
-- ARGV[1]  id of the stock
-- ARGV[2]  units of the bucket
-- ARGV[3]  limit of units for each buyer, 0 for none
-- ARGV[4]  the time until which it may be made, milliseconds since 1970
-- ARGV[5]  1 if the stock has several buckets
--
-- returns  1 there is one now; 0 it is too late to make one; -1 there is one of
--          another stock
-- errors   WRONGTYPE if the key holds other data
-- twice    harmless: a bucket that is there is left alone, and a copy that comes
--          late makes none, for the one it is to make may have been lost with all
--          that was sold from it
-- source   our own

local id = redis.call('HGET', KEYS[1], 'id')
if id then
  return id == ARGV[1] and 1 or -1
end
local time = redis.call('TIME')
if tonumber(time[1]) * 1000 > tonumber(ARGV[4]) then
  return 0
end
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'limit', ARGV[3], 'free', ARGV[2], 'reserved', 0, 'tentative', 0,
  'sold', 0, 'added', ARGV[2], 'undecided', 0)
if ARGV[5] == '1' then
  redis.call('HSET', KEYS[1], 'raised', 0)
end
return 1
