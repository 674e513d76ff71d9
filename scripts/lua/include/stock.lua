-- What the scripts of a stock's bucket share. All of them declare the same keys
-- and begin with the same arguments.

local totals, orders, ends, forget, expired, buyers = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

-- The counts are stock_reserve's, the busiest: it has no command of its own for them.
local found = redis.call('HMGET', totals, 'id', 'limit', 'raised', 'free', 'tentative', 'undecided', 'wants')
if found[1] ~= ARGV[1] then
  return redis.error_reply('NOSTOCK the bucket is missing, or belongs to another stock of this name')
end
local limit, several = tonumber(found[2]), found[3]

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- Lua writes large numbers with an exponent.
local function plain(n)
  return string.format('%.0f', n)
end

local function tell()
  if ARGV[3] ~= 'SPUBLISH' then
    redis.call('PUBLISH', ARGV[2], '0')
  end
  if ARGV[3] ~= 'PUBLISH' then
    redis.call('SPUBLISH', ARGV[2], '0')
  end
end

-- An order is "state units refunded time buyer". The states: t tentative,
-- r reserved, s sold, x cancelled, e expired; t and r are live. The time is the
-- end of a live order, and else that of its last change.
local function parse(id, text)
  if not text then
    return nil
  end
  local state, units, refunded, at, buyer = string.match(text, '^(%a) (%d+) (%d+) (%d+) (.*)$')
  return { id = id, state = state, units = tonumber(units), refunded = tonumber(refunded), at = tonumber(at), buyer = buyer }
end

local function read(id)
  return parse(id, redis.call('HGET', orders, 'o:' .. id))
end

local function live(o)
  return o.state == 't' or o.state == 'r'
end

local function format(state, units, refunded, at, buyer)
  return state .. ' ' .. units .. ' ' .. refunded .. ' ' .. at .. ' ' .. buyer
end

local function write(o)
  local text = format(o.state, plain(o.units), plain(o.refunded), plain(o.at), o.buyer)
  redis.call('HSET', orders, 'o:' .. o.id, text)
end

-- remember has an order or a request forgotten after that time, not before.
local function remember(field, retention)
  redis.call('ZADD', forget, plain(now + retention), field)
end

-- bought counts what a buyer has, where there is a limit.
local function bought(buyer, units)
  if limit > 0 and redis.call('HINCRBY', buyers, buyer, plain(units)) <= 0 then
    redis.call('HDEL', buyers, buyer)
  end
end

-- restock puts units on sale again. Where there are several buckets, it is counted
-- how often that happens: whoever has looked into all of them twice and finds the
-- same numbers has seen them as they were at one moment.
local function restock(units, undecided)
  if several then
    redis.call('HINCRBY', totals, 'raised', 1)
  end
  if redis.call('HINCRBY', totals, 'free', plain(units)) == units or undecided then
    tell()
  end
end

-- drop ends a live order. A tentative one leaves no trace: nobody was told that
-- it has its units, and a copy that takes them again does so for seconds. The
-- first write takes no memory.
local function drop(o, state)
  redis.call('ZREM', ends, o.id)
  local undecided = o.state == 't'
  redis.call('HINCRBY', totals, undecided and 'tentative' or 'reserved', plain(-o.units))
  bought(o.buyer, -o.units)
  o.state = state
  if state == 'x' then
    o.at = now
  end
  if undecided then
    redis.call('HDEL', orders, 'o:' .. o.id)
  else
    write(o)
    remember('o:' .. o.id, tonumber(ARGV[4]))
    if state == 'e' then
      redis.call('ZADD', expired, plain(now), o.id)
    end
  end
  restock(o.units, undecided)
end

-- look reads an order, and decides first whether its time is over. A tentative
-- one is none any more then.
local function look(id)
  local o = read(id)
  if o and live(o) and o.at <= now then
    local tentative = o.state == 't'
    drop(o, 'e')
    if tentative then
      return nil
    end
  end
  return o
end

-- sweep ends orders whose time is over, most at a time.
local function sweep(most)
  local due = redis.call('ZRANGEBYSCORE', ends, '-inf', plain(now), 'LIMIT', 0, most)
  for _, id in ipairs(due) do
    local o = read(id)
    if o and live(o) then
      drop(o, 'e')
    else
      redis.call('ZREM', ends, id)
    end
  end
  return #due
end

-- trim forgets what has been remembered long enough, most at a time.
local function trim(most)
  local due = redis.call('ZRANGEBYSCORE', forget, '-inf', plain(now), 'LIMIT', 0, most)
  for _, field in ipairs(due) do
    redis.call('ZREM', forget, field)
    redis.call('HDEL', orders, field)
    if string.sub(field, 1, 2) == 'o:' then
      redis.call('ZREM', expired, string.sub(field, 3))
    end
  end
  return #due
end

-- answer is what every call on one order returns.
local function answer(word, left, o, replayed)
  if not o then
    return { word, left, now, '', 0, 0, 0, '', replayed and 1 or 0 }
  end
  return { word, left, now, o.state, o.units, o.refunded, o.at, o.buyer, replayed and 1 or 0 }
end

-- accept takes in units that other buckets have sent: "bucket number units" for
-- each transfer. Numbers of one sender rise, and the last one is kept for ever, so
-- a copy that comes late is known as such.
local function accept(transfers)
  for from, number, units in string.gmatch(transfers, '(%d+) (%d+) (%d+)') do
    local last = redis.call('HGET', totals, 'from:' .. from)
    if not last or tonumber(number) > tonumber(last) then
      redis.call('HSET', totals, 'from:' .. from, number)
      redis.call('HINCRBY', totals, 'taken', units)
      restock(tonumber(units))
    end
  end
end
