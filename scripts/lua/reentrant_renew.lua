-- reentrant_renew.lua: give locks a fresh lease, each if its owner has it.
--
-- KEYS[i]  lock hash: field = owner, value = number of holds
-- ARGV[i]  owner of KEYS[i], for as many as there are keys, then
-- ARGV[n+i] lease of KEYS[i], milliseconds: the TTL is lifted to it, never lowered
--
-- returns  for each key: 1 renewed; 0 nobody has the lock; -1 another owner has
--          it; the text of an error, if that key had one
-- twice    harmless
-- source   Redisson, LockRenewalScheduler; differs: one bad key costs the others
--          nothing, and the TTL is never lowered

local n = #KEYS
local verdicts = {}
for i = 1, n do
  local mine = redis.pcall('HEXISTS', KEYS[i], ARGV[i])
  if type(mine) == 'table' then
    verdicts[i] = mine.err
  elseif mine == 0 then
    verdicts[i] = -redis.call('EXISTS', KEYS[i])
  else
    if redis.call('PTTL', KEYS[i]) < tonumber(ARGV[n + i]) then
      redis.call('PEXPIRE', KEYS[i], ARGV[n + i])
    end
    verdicts[i] = 1
  end
end
return verdicts
