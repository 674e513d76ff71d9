-- stock_refund.lua: put units of a sold order on sale again, once for a request.
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
-- ARGV[6]  refund
-- ARGV[7]  units, at least 1
--
-- returns  {word, units left, now, state, units, refunded, at, buyer, replayed},
--          the times in milliseconds since 1970; words are ok; conflict if the refund is another
--          or the order has fewer units left; unknown; reserved, expired,
--          cancelled if the order was not sold
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: a repeat finds the refund, for as long as it is remembered
-- source   our own

-- include: stock

local o = look(ARGV[5])
-- A refund is one of its order: what other orders have is in other buckets.
local field = 'f:' .. #ARGV[6] .. ':' .. ARGV[6] .. ':' .. ARGV[5]
local known = redis.call('HGET', orders, field)
if known then
  if known ~= ARGV[7] then
    return answer('conflict', tonumber(known), o, true)
  end
  return answer('ok', 0, o, true)
end
if not o or o.units == 0 then
  return answer('unknown', 0)
elseif o.state == 'x' then
  return answer('cancelled', 0, o)
elseif o.state == 'e' then
  return answer('expired', 0, o)
elseif o.state ~= 's' then
  return answer('reserved', 0, o)
end
local units = tonumber(ARGV[7])
if units > o.units - o.refunded then
  return answer('conflict', o.units - o.refunded, o)
end
redis.call('ZREM', forget, 'o:' .. o.id)
redis.call('HINCRBY', totals, 'sold', plain(-units))
bought(o.buyer, -units)
o.refunded, o.at = o.refunded + units, now
write(o)
remember('o:' .. o.id, tonumber(ARGV[4]))
redis.call('HSET', orders, field, ARGV[7])
remember(field, tonumber(ARGV[4]))
restock(units)
return answer('ok', o.units - o.refunded, o)
