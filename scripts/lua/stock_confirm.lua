-- stock_confirm.lua: sell the units of a reserved order, if its time is not over.
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
-- ARGV[5]  order
--
-- returns  {word, units left, now, state, units, refunded, at, buyer, replayed},
--          the times in milliseconds since 1970; words are ok, unknown, expired, cancelled
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: a repeat finds it sold
-- source   our own

-- include: stock

local o = look(ARGV[5])
if not o or o.units == 0 or o.state == 't' then
  return answer('unknown', 0)
elseif o.state == 'x' then
  return answer('cancelled', 0, o, true)
elseif o.state == 'e' then
  return answer('expired', 0, o, true)
elseif o.state == 's' then
  return answer('ok', 0, o, true)
end
redis.call('ZREM', ends, o.id)
redis.call('HINCRBY', totals, 'reserved', plain(-o.units))
redis.call('HINCRBY', totals, 'sold', plain(o.units))
o.state, o.at = 's', now
write(o)
remember('o:' .. o.id, tonumber(ARGV[4]))
return answer('ok', 0, o)
