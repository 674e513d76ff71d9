-- stock_reserve.lua: take units for an order, for a time.
--
-- KEYS[1]  bucket hash: the stock's id, its limit, and units: free, reserved,
--          tentative, sold, added; undecided is when the last tentative one ends
-- KEYS[2]  orders hash: o:ORDER, f:REFUND, a:DELIVERY
-- KEYS[3]  live orders by the end of their time
-- KEYS[4]  fields of the orders hash by the time when they are forgotten
-- KEYS[5]  expired orders that nobody has acknowledged, by when they were found
-- KEYS[6]  buyers hash: what each has, if there is a limit
-- ARGV[1]  id of the stock
-- ARGV[2]  channel of the bucket
-- ARGV[3]  PUBLISH, SPUBLISH, or BOTH
-- ARGV[4]  how long orders are remembered after their end, milliseconds
-- ARGV[5]  order
-- ARGV[6]  units, at least 1
-- ARGV[7]  how long they are reserved, milliseconds
-- ARGV[8]  buyer, may be empty
-- ARGV[9]  r, or t for a tentative order, which waits for its settlement
--
-- returns  {word, units left, now, state, units, refunded, at, buyer, replayed},
--          the times in milliseconds since 1970; words are ok; soldout; limit; wait if tentative
--          units would do, with the milliseconds until the last one is decided;
--          again if more orders have to be swept first; and of an order that was
--          there: conflict if it is another, expired, cancelled
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: a repeat finds the order and answers with it, for as long as
--          it is remembered; a copy that comes later than that is a new order
-- source   our own

-- include: stock

trim(2)

local id, units, mode = ARGV[5], tonumber(ARGV[6]), ARGV[9]
local o = look(id)
if o then
  if o.state == 'x' then
    return answer('cancelled', 0, o, true)
  elseif o.units ~= units or o.buyer ~= ARGV[8] or (o.state == 't' and mode == 'r') then
    return answer('conflict', o.units, o, true)
  elseif o.state == 'e' then
    return answer('expired', 0, o, true)
  end
  return answer('ok', 0, o, true)
end

-- refusal is why the order cannot be taken now, if so.
local free, tentative, undecided
local function refusal()
  local counts = redis.call('HMGET', totals, 'free', 'tentative', 'undecided')
  free, tentative, undecided = tonumber(counts[1]), tonumber(counts[2]), tonumber(counts[3])
  if limit > 0 then
    local has = tonumber(redis.call('HGET', buyers, ARGV[8]) or 0)
    if has + units > limit then
      return answer('limit', limit - has)
    end
  end
  if free >= units then
    return nil
  elseif free + tentative >= units and undecided > now then
    return answer('wait', undecided - now)
  end
  return answer('soldout', free)
end

local refused = refusal()
if refused then
  -- Units of orders whose time is over may be what is missing.
  local most = 100
  local swept = sweep(most)
  if swept > 0 then
    refused = refusal()
  end
  if refused and swept == most then
    return answer('again', free)
  elseif refused then
    return refused
  end
end

o = { id = id, state = mode, units = units, refunded = 0, at = now + tonumber(ARGV[7]), buyer = ARGV[8] }
if redis.call('HINCRBY', totals, 'free', plain(-units)) == 0 then
  tell()
end
if mode == 't' then
  redis.call('HINCRBY', totals, 'tentative', plain(units))
  if o.at > undecided then
    redis.call('HSET', totals, 'undecided', plain(o.at))
  end
else
  redis.call('HINCRBY', totals, 'reserved', plain(units))
end
bought(o.buyer, units)
redis.call('ZADD', ends, plain(o.at), id)
write(o)
return answer('ok', free - units, o)
