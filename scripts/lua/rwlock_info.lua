-- rwlock_info.lua: read who holds the lock.
--
-- KEYS[1]  lock hash: mode = read or write, owner = number of holds of each reader,
--          owner:write = number of holds of the writer
--
-- returns  {rest of the TTL in milliseconds, -1 for no end; the mode; then owner, holds,
--          …}, {-2} if it is free
-- errors   WRONGTYPE if the key is no hash, or is another kind of lock
-- twice    harmless: it only reads

local left = redis.call('PTTL', KEYS[1])
local all = redis.call('HGETALL', KEYS[1])
local reply = { left }
for i = 1, #all, 2 do
  if all[i] == 'mode' then
    reply[2] = all[i + 1]
  end
end
if left == -2 then
  return reply
end
if reply[2] ~= 'read' and reply[2] ~= 'write' then
  return redis.error_reply('WRONGTYPE the key is no read-write lock')
end
for i = 1, #all, 2 do
  if all[i] ~= 'mode' then
    reply[#reply + 1] = all[i]
    reply[#reply + 1] = all[i + 1]
  end
end
return reply
