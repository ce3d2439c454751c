-- Adds what a replica admitted while this store was away.
--
-- KEYS[1]   as for charging
-- ARGV      groups of five: age in seconds, amounts by dimension
--
-- Answers this server's slot.
local slot = tonumber(redis.call('TIME')[1])
for i = 1, #ARGV, 5 do
  local age = tonumber(ARGV[i])
  if age < 61 then
    for dimension = 1, 4 do
      if tonumber(ARGV[i + dimension]) > 0 then
        redis.call('HINCRBY', KEYS[1], string.format('%d:%d', slot - age, dimension), ARGV[i + dimension])
      end
    end
  end
end
redis.call('PEXPIRE', KEYS[1], 62000)
return slot
