-- Adds what a replica has to hand over. The same handover counts once.
--
-- KEYS      as for charging
-- ARGV[1]   the handover's id
-- ARGV[2]   the instance that this account must be, empty for any
-- ARGV[3]   the length of a lease in milliseconds
-- ARGV[4]   the number of settled parts
-- ARGV[5..] these, groups of five: age in seconds, amounts by dimension;
--           then running requests, groups of six: id, age in seconds, amounts by dimension
--
-- Answers the instance, or nothing if it's another one and nothing was done.
local now = tonumber(redis.call('TIME')[1])
local millis = now * 1000 + math.floor(tonumber(redis.call('TIME')[2]) / 1000)
local instance = redis.call('HGET', KEYS[1], 'instance')
if ARGV[2] ~= '' and instance ~= ARGV[2] then return false end
instance = instance or ARGV[1]
redis.call('HSET', KEYS[1], 'instance', instance)
local function add(first, age)
  for dimension = 1, 4 do
    if tonumber(ARGV[first + dimension - 1]) > 0 then
      redis.call('HINCRBY', KEYS[1], string.format('%d:%d', now - age, dimension), ARGV[first + dimension - 1])
    end
  end
end
if redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then
  redis.call('HSET', KEYS[3], ARGV[1], 'x')
  redis.call('ZADD', KEYS[4], now, ARGV[1])
  local i = 5
  for _ = 1, tonumber(ARGV[4]) do
    local age = tonumber(ARGV[i])
    if age < 61 then add(i + 1, age) end
    i = i + 5
  end
  while i <= #ARGV do
    local id, age = ARGV[i], tonumber(ARGV[i + 1])
    local record = redis.call('HGET', KEYS[3], id)
    if record ~= 'x' then
      redis.call('ZADD', KEYS[2], millis + tonumber(ARGV[3]), id)
      if not record and age < 61 then
        add(i + 2, age)
        redis.call('HSET', KEYS[3], id, table.concat({now - age, ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]}, ':'))
        redis.call('ZADD', KEYS[4], now - age, id)
      end
    end
    i = i + 6
  end
end
for i = 1, 4 do
  if i ~= 2 then redis.call('PEXPIRE', KEYS[i], 62000) end
end
redis.call('PEXPIRE', KEYS[2], ARGV[3], 'NX')
redis.call('PEXPIRE', KEYS[2], ARGV[3], 'GT')
return instance
