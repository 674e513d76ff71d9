-- rwlock_read_renew.lua: give readers a fresh lease, each if its hold is still there.
--
-- KEYS[2*i-1]  lock hash: mode = read or write, owner = 1 of each reader
-- KEYS[2*i]  key of the hold of the reader
-- ARGV[i]  owner of that hold, for as many as there are pairs of keys, then
-- ARGV[n+i]  lease of that hold, milliseconds: both TTLs are lifted to it, never lowered
--
-- returns  for each hold: 1 renewed; 0 it is no more; -1 a writer has the lock; the
--          text of an error, if its keys had one
-- twice    harmless
-- source   Redisson, ReadLockTask; differs: a hold without its key is lost, one bad key
--          costs the others nothing, and no TTL is lowered

local n = #KEYS / 2
local verdicts = {}
for i = 1, n do
  local found = redis.pcall('HMGET', KEYS[2 * i - 1], 'mode', ARGV[i])
  local left = redis.pcall('PTTL', KEYS[2 * i])
  if found.err or type(left) == 'table' then
    verdicts[i] = found.err or left.err
  elseif not found[2] then
    verdicts[i] = found[1] == 'write' and -1 or 0
  elseif left == -2 then
    verdicts[i] = 0
  else
    if left < tonumber(ARGV[n + i]) then
      redis.call('PEXPIRE', KEYS[2 * i], ARGV[n + i])
    end
    if redis.call('PTTL', KEYS[2 * i - 1]) < tonumber(ARGV[n + i]) then
      redis.call('PEXPIRE', KEYS[2 * i - 1], ARGV[n + i])
    end
    verdicts[i] = 1
  end
end
return verdicts
