-- stock_add.lua: put more units on sale, once for a delivery.
--
-- KEYS[1]  bucket hash: the stock's id, its limit, and units: free, reserved,
--          tentative, sold, added; undecided is when the last tentative one ends
-- KEYS[2]  orders hash: o:ORDER, f:N:REFUND:ORDER, a:DELIVERY
-- KEYS[3]  live orders by the end of their time
-- KEYS[4]  fields of the orders hash by the time when they are forgotten
-- KEYS[5]  expired orders that nobody has acknowledged, by when they were found
-- KEYS[6]  buyers hash: what each has, if there is a limit
-- ARGV[1]  id of the stock
-- ARGV[2]  channel of the bucket
-- ARGV[3]  PUBLISH, SPUBLISH, or BOTH
-- ARGV[4]  how long orders are remembered after their end, milliseconds
-- ARGV[5]  delivery
-- ARGV[6]  units, at least 1
--
-- returns  {word, units}: ok and those added; replayed if they were added before;
--          conflict and those added if the delivery is another
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: a repeat finds the delivery, for as long as it is remembered
-- source   our own

-- include: stock

local known = redis.call('HGET', orders, 'a:' .. ARGV[5])
if known then
  return { known == ARGV[6] and 'replayed' or 'conflict', tonumber(known) }
end
local units = tonumber(ARGV[6])
redis.call('HINCRBY', totals, 'added', plain(units))
redis.call('HSET', orders, 'a:' .. ARGV[5], ARGV[6])
remember('a:' .. ARGV[5], tonumber(ARGV[4]))
restock(units)
return { 'ok', units }
