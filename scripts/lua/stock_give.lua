-- stock_give.lua: send units to another bucket. They are on their way until that one
-- has taken them in.
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
-- ARGV[5]  bucket that is to get them
-- ARGV[6]  how many units it needs, at least 1
-- ARGV[7]  1 to send half of what is here if that is more
-- ARGV[8]  number of this bucket
-- ARGV[9]  1 if they are for an order of several units
--
-- returns  {number of the transfer, units, units left}: a transfer to the same
--          bucket that is not known to have arrived is returned as it is, and no
--          other one made. {0, 0, units left} if there is nothing to send.
--          {-1, milliseconds, units left} if this bucket collects units for a large
--          order of its own and has the lower number: then two that want what the
--          other one has do not take it from each other for ever
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: a repeat finds the transfer, or sends some units too many,
--          which arrive like others
-- source   our own

-- include: stock

local function find()
  local counts = redis.call('HMGET', totals, 'free', 'wants', 'to:' .. ARGV[5], 'sent')
  return tonumber(counts[1]), tonumber(counts[2] or 0), counts[3], tonumber(counts[4] or 0)
end

local free, wants, open, sent = find()
if open then
  local number, units = string.match(open, '^(%d+) (%d+)$')
  return { tonumber(number), tonumber(units), free }
end
local need = tonumber(ARGV[6])
if free < need and sweep(100) > 0 then
  free, wants, open, sent = find()
end
if free < 1 then
  return { 0, 0, free }
elseif ARGV[9] == '1' and wants > now and tonumber(ARGV[8]) < tonumber(ARGV[5]) then
  return { -1, wants - now, free }
end
local units = math.min(free, need)
if ARGV[7] == '1' then
  units = math.max(units, math.floor(free / 2))
end
-- By the clock, so that a number is not used again should this bucket forget it.
local number = math.max(sent + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
if redis.call('HINCRBY', totals, 'free', plain(-units)) == 0 then
  tell()
end
redis.call('HINCRBY', totals, 'given', plain(units))
redis.call('HINCRBY', totals, 'transit', plain(units))
redis.call('HSET', totals, 'sent', plain(number), 'to:' .. ARGV[5], plain(number) .. ' ' .. plain(units))
return { number, units, free - units }
