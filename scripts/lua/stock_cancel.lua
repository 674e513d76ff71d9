-- stock_cancel.lua: give the units of a live order back. An order that is not
-- there is cancelled before it comes, for a while.
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
-- ARGV[6]  how long an unknown order stays cancelled, milliseconds
--
-- returns  {word, units left, now, state, units, refunded, at, buyer, replayed},
--          the times in milliseconds since 1970; words are ok, also for an order that expired;
--          unknown; sold
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: a repeat finds it cancelled
-- source   our own

-- include: stock

local o = look(ARGV[5])
if not o then
  -- A copy of its reservation may still be on its way.
  write({ id = ARGV[5], state = 'x', units = 0, refunded = 0, at = now, buyer = '' })
  remember('o:' .. ARGV[5], tonumber(ARGV[6]))
  return answer('unknown', 0)
elseif o.units == 0 then
  return answer('unknown', 0)
elseif o.state == 's' then
  return answer('sold', o.units - o.refunded, o, true)
elseif not live(o) then
  return answer('ok', 0, o, true)
end
drop(o, 'x')
return answer('ok', 0, o)
