-- fence_guard.lua: refuse a write whose fencing token is older than the newest
-- that the resource has seen; it goes before the script that writes.
--
-- KEYS[1]  fence of the resource: the newest token seen
-- KEYS[2]  … keys of the script that follows
-- ARGV[1]  token, decimal
-- ARGV[2]  … arguments of the script that follows
--
-- returns  what the script that follows returns
-- errors   STALETOKEN if the token is 0 or older than the newest one
-- twice    harmless by itself: the same token passes again

local fence, token = KEYS[1], ARGV[1]
do
  -- Tokens are unsigned 64-bit integers, which Lua's numbers cannot hold; without
  -- leading zeros the longer is the larger, and equally long ones compare as text.
  token = string.gsub(token, '^0+', '')
  local newest = string.gsub(redis.call('GET', fence) or '', '^0+', '')
  if token == '' or #token < #newest or (#token == #newest and token < newest) then
    return redis.error_reply('STALETOKEN token ' .. ARGV[1] .. ' is older than ' .. (newest == '' and '1' or newest))
  end
  if token ~= newest then
    redis.call('SET', fence, token)
  end
end
table.remove(KEYS, 1)
table.remove(ARGV, 1)
