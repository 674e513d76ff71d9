-- stock_settle.lua: make a tentative order a reserved one, or give its units back.
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
-- ARGV[6]  how long its units are reserved, milliseconds; 0 to give them back
--
-- returns  {word, units left, now, state, units, refunded, at, buyer, replayed},
--          the times in milliseconds since 1970; words are ok, unknown, expired, cancelled
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: a repeat finds it reserved and leaves its time, or finds none
-- source   our own

-- include: stock

local o = look(ARGV[5])
if not o or o.units == 0 then
  return answer('unknown', 0)
elseif o.state == 'x' then
  return answer('cancelled', 0, o, true)
elseif o.state == 'e' then
  return answer('expired', 0, o, true)
elseif o.state ~= 't' then
  return answer('ok', 0, o, true)
elseif ARGV[6] == '0' then
  drop(o, 'x')
  return answer('cancelled', 0, o)
end
redis.call('ZREM', ends, o.id)
redis.call('HINCRBY', totals, 'tentative', plain(-o.units))
redis.call('HINCRBY', totals, 'reserved', plain(o.units))
o.state, o.at = 'r', now + tonumber(ARGV[6])
redis.call('ZADD', ends, plain(o.at), o.id)
write(o)
tell()
return answer('ok', 0, o)
