-- segmented_count.lua: record of how many segments a striped lock has, once.
--
-- KEYS[1]  record: the number of segments
-- ARGV[1]  number of segments of the one that asks
--
-- returns  the number that is recorded, as a string
-- errors   WRONGTYPE if the key holds other data
-- twice    harmless: what is recorded stays
-- source   our own

local count = redis.call('GET', KEYS[1])
if count then
  return count
end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
