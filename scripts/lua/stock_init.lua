-- stock_init.lua: decide what a stock is, once.
--
-- KEYS[1]  stock hash: id, units, buckets, live = in how many of them free units
--          rest, limit, state = initialising or open, and the time until which
--          buckets may be made
-- ARGV[1]  id of the stock, if it is new
-- ARGV[2]  units; -1 only reads
-- ARGV[3]  number of buckets
-- ARGV[4]  limit of units for each buyer, 0 for none
-- ARGV[5]  how long buckets may be made, milliseconds
--
-- returns  {id, units, buckets, limit, state, until, live}, each a string and until in
--          milliseconds since 1970; an empty list if there is no stock
-- errors   WRONGTYPE if the key holds other data
-- twice    harmless: what is decided stays; a stock that is being initialised gives
--          whoever asks a fresh time for its buckets
-- source   our own

local state = redis.call('HGET', KEYS[1], 'state')
if ARGV[2] == '-1' and not state then
  return {}
end
if ARGV[2] ~= '-1' and state ~= 'open' then
  local time = redis.call('TIME')
  local upto = string.format('%.0f', tonumber(time[1]) * 1000 + tonumber(ARGV[5]))
  if not state then
    redis.call('HSET', KEYS[1], 'id', ARGV[1], 'units', ARGV[2], 'buckets', ARGV[3], 'live', ARGV[3], 'limit', ARGV[4], 'state', 'initialising')
  end
  redis.call('HSET', KEYS[1], 'until', upto)
end
return redis.call('HMGET', KEYS[1], 'id', 'units', 'buckets', 'limit', 'state', 'until', 'live')
