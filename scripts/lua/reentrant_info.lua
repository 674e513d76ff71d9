-- reentrant_info.lua: read who holds the lock.
--
-- KEYS[1]  lock hash: field = owner, value = number of holds
--
-- returns  {rest of the TTL in milliseconds, -1 for no end, -2 if it is free,
--          then owner, holds, …}
-- errors   WRONGTYPE if the key is no hash, or is a read-write lock
-- twice    harmless: it only reads

local reply = redis.call('HGETALL', KEYS[1])
for i = 1, #reply, 2 do
  if reply[i] == 'mode' then
    return redis.error_reply('WRONGTYPE the key is a read-write lock')
  end
end
table.insert(reply, 1, redis.call('PTTL', KEYS[1]))
return reply
