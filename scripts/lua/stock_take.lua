-- stock_take.lua: take in units that other buckets have sent.
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
-- ARGV[5]  the transfers, "bucket number units" for each
--
-- returns  units that are free
-- errors   NOSTOCK if the bucket is missing or another stock's
-- twice    harmless: a bucket knows the last number that it took from each other
-- source   our own

-- include: stock

accept(ARGV[5])
return tonumber(redis.call('HGET', totals, 'free'))
