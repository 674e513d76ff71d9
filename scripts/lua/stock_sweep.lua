-- stock_sweep.lua: end orders whose time is over, forget what was remembered long
-- enough, and list expired orders.
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
-- ARGV[5]  how many at most of each
-- ARGV[6]  how many expired orders to list
--
-- returns  {swept, forgotten, {order, units, at, buyer, …}}: those expired longest
--          are listed first, with the end of their time in milliseconds since 1970
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: what is swept is swept
-- source   our own

-- include: stock

local swept, forgotten = sweep(tonumber(ARGV[5])), trim(tonumber(ARGV[5]))
local list = {}
if tonumber(ARGV[6]) > 0 then
  for _, id in ipairs(redis.call('ZRANGE', expired, 0, tonumber(ARGV[6]) - 1)) do
    local o = read(id)
    if o then
      list[#list + 1] = id
      list[#list + 1] = o.units
      list[#list + 1] = o.at
      list[#list + 1] = o.buyer
    end
  end
end
return { swept, forgotten, list }
