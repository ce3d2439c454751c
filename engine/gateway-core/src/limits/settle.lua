-- Corrects a charge to what the request really had, and ends its lease.
--
-- KEYS      as for charging
-- ARGV[1]   the slot of the charge
-- ARGV[2-5] what was charged by dimension
-- ARGV[6-9] what it came to by dimension
-- ARGV[10]  the request's id; empty for one that has no lease
--
-- Answers 1 if the slot still counted, else 0.
if ARGV[10] ~= '' then redis.call('ZREM', KEYS[2], ARGV[10]) end
local now = tonumber(redis.call('TIME')[1])
local slot = tonumber(ARGV[1])
if slot <= now - 61 or slot > now then return 0 end
for dimension = 1, 4 do
  local field = string.format('%d:%d', slot, dimension)
  local held = tonumber(redis.call('HGET', KEYS[1], field) or '0')
  local amount = held - math.min(held, tonumber(ARGV[1 + dimension])) + tonumber(ARGV[5 + dimension])
  if amount > 0 then
    redis.call('HSET', KEYS[1], field, string.format('%.0f', amount))
  else
    redis.call('HDEL', KEYS[1], field)
  end
end
if redis.call('PTTL', KEYS[1]) == -1 then redis.call('PEXPIRE', KEYS[1], 62000) end
return 1
