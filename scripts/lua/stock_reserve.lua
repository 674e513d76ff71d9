-- stock_reserve.lua: take units for orders, for a time: of each order all or none.
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
-- ARGV[5]  units that come from other buckets, "bucket number units" for each
--          transfer; mostly empty
-- ARGV[i]    order; from the sixth argument on five for each
-- ARGV[i+1]  units, at least 1
-- ARGV[i+2]  how long they are reserved, milliseconds
-- ARGV[i+3]  buyer, may be empty
-- ARGV[i+4]  r, or t for a tentative order, which waits for its settlement
--
-- returns  for each order a number or a list: a number is now, and the order got its
--          units; a list is {word, units left, now, state, units, refunded, at,
--          buyer, replayed}, with times in milliseconds since 1970. Words are ok for
--          one that had its units; soldout; limit; wait if tentative units would
--          do, with the milliseconds until the last one is decided; again if more
--          orders have to be swept first; and of an order that was there: conflict
--          if it is another, expired, cancelled. Of several buckets, one that says
--          soldout keeps what it has from larger numbers for a moment: see
--          stock_give
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: a repeat finds the order and answers with it, for as long as
--          it is remembered; a copy that comes later than that is a new order
-- source   our own

-- include: stock

local free, tentative, undecided = tonumber(found[4]), tonumber(found[5]), tonumber(found[6])
local wants = found[7]
local function count()
  local counts = redis.call('HMGET', totals, 'free', 'tentative', 'undecided', 'wants')
  free, tentative, undecided = tonumber(counts[1]), tonumber(counts[2]), tonumber(counts[3])
  wants = counts[4]
end

if ARGV[5] ~= '' then
  accept(ARGV[5])
  count()
end
local runs = (#ARGV - 5) / 5
trim(1 + runs)

-- What the orders get is written at the end, for all of them at once, or before
-- something else is read or written.
local fresh = {} -- orders that got their units in this script
local scores, fields = {}, {}
local reserved, promised = 0, 0
local function settle()
  if #fields == 0 then
    return
  end
  if redis.call('HINCRBY', totals, 'free', plain(-reserved - promised)) == 0 then
    tell()
  end
  if reserved > 0 then
    redis.call('HINCRBY', totals, 'reserved', plain(reserved))
  end
  if promised > 0 then
    redis.call('HINCRBY', totals, 'tentative', plain(promised))
    redis.call('HSET', totals, 'undecided', plain(undecided))
  end
  redis.call('ZADD', ends, unpack(scores))
  redis.call('HSET', orders, unpack(fields))
  if wants then
    redis.call('HDEL', totals, 'wants')
  end
  scores, fields, reserved, promised, wants = {}, {}, 0, 0, nil
end

local function refusal(units, buyer)
  if limit > 0 then
    local has = tonumber(redis.call('HGET', buyers, buyer) or 0)
    if has + units > limit then
      return answer('limit', limit - has)
    end
  end
  if free >= units then
    return nil
  elseif not several and free + tentative >= units and undecided > now then
    return answer('wait', undecided - now)
  end
  return answer('soldout', free)
end

-- Most orders of a script have the same time.
local over = {}
local function lasts(window)
  local at = over[window]
  if not at then
    at = plain(now + window)
    over[window] = at
  end
  return at
end

local most, swept = 100, nil -- orders whose time is over
local function reserve(text, id, units, window, buyer, mode)
  local o = text and parse(id, text)
  if fresh[id] or o and live(o) and o.at <= now then
    -- What was read at first is no longer so, or will not be.
    settle()
    o = look(id)
    count()
  end
  if o then
    if o.state == 'x' then
      return answer('cancelled', 0, o, true)
    elseif o.units ~= units or o.buyer ~= buyer or (o.state == 't' and mode == 'r') then
      return answer('conflict', o.units, o, true)
    elseif o.state == 'e' then
      return answer('expired', 0, o, true)
    end
    return answer('ok', 0, o, true)
  end

  local refused = refusal(units, buyer)
  if refused and not swept then
    -- Units of orders whose time is over may be what is missing.
    settle()
    swept = sweep(most)
    if swept > 0 then
      count()
      refused = refusal(units, buyer)
    end
  end
  if refused and swept == most then
    return answer('again', free)
  elseif refused then
    if several and units > 1 and refused[1] == 'soldout' then
      settle()
      wants = plain(now + 100)
      -- By pcall: a refusal is to be heard when memory is full, too.
      redis.pcall('HSET', totals, 'wants', wants)
    end
    return refused
  end

  free = free - units
  if mode == 't' then
    promised, tentative = promised + units, tentative + units
    undecided = math.max(undecided, now + window)
  else
    reserved = reserved + units
  end
  bought(buyer, units)
  fresh[id] = true
  local at, n = lasts(window), #fields
  scores[n + 1], scores[n + 2] = at, id
  fields[n + 1], fields[n + 2] = 'o:' .. id, format(mode, units == 1 and '1' or plain(units), '0', at, buyer)
  return now
end

local names = {}
for run = 1, runs do
  local i = 5 * run + 1
  names[run] = 'o:' .. ARGV[i]
end
local texts = redis.call('HMGET', orders, unpack(names))
local replies = {}
for run = 1, runs do
  local i = 5 * run + 1
  replies[run] = reserve(texts[run], ARGV[i], tonumber(ARGV[i+1]), tonumber(ARGV[i+2]), ARGV[i+3], ARGV[i+4])
end
settle()
return replies
