-- Corrects charges to what the requests really had, and ends their leases. A request is settled once; the first word counts.
--
-- KEYS      as for charging
-- ARGV[1]   the instance that this account must be
-- ARGV[2..] groups of five: a request's id, what it came to by dimension
--
-- Answers 1, or 0 if this is another instance and nothing was done.
if redis.call('HGET', KEYS[1], 'instance') ~= ARGV[1] then return 0 end
local now = tonumber(redis.call('TIME')[1])
for i = 2, #ARGV, 5 do
  local id = ARGV[i]
  redis.call('ZREM', KEYS[2], id)
  local record = redis.call('HGET', KEYS[3], id)
  if not record then
    -- Its charge may still come, from a connection that was given up.
    redis.call('ZADD', KEYS[4], now, id)
  elseif record ~= 'x' then
    local parts = {}
    for part in string.gmatch(record, '%d+') do parts[#parts + 1] = part end
    local slot = tonumber(parts[1])
    if slot > now - 61 then
      for dimension = 1, 4 do
        local field = string.format('%d:%d', slot, dimension)
        local held = tonumber(redis.call('HGET', KEYS[1], field) or '0')
        local amount = held - math.min(held, tonumber(parts[1 + dimension])) + tonumber(ARGV[i + dimension])
        if amount > 0 then
          redis.call('HSET', KEYS[1], field, string.format('%.0f', amount))
        else
          redis.call('HDEL', KEYS[1], field)
        end
      end
    end
  end
  redis.call('HSET', KEYS[3], id, 'x')
end
redis.call('PEXPIRE', KEYS[3], 62000)
redis.call('PEXPIRE', KEYS[4], 62000)
return 1
