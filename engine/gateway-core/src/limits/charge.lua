-- Admits a request into a tenant's shared account, or refuses it and changes nothing.
--
-- KEYS[1]   hash: "<slot>:<dimension>" -> amount, slots of one second of this server's clock, dimensions 1 to 4; "instance" -> its name
-- KEYS[2]   sorted set: running requests -> the millisecond in which their lease ends
-- KEYS[3]   hash: requests of the last minute -> "<slot>:<amounts by dimension>", or "x" if nothing may be counted under that name any more
-- KEYS[4]   sorted set: the same requests -> their slots
-- ARGV[1-4] limits per minute by dimension, -1 for none
-- ARGV[5-8] costs by dimension
-- ARGV[9]   concurrency limit, -1 for none
-- ARGV[10]  the request's id, unique among all replicas
-- ARGV[11]  the length of its lease in milliseconds
-- ARGV[12]  the instance that this account must be, empty for any
--
-- Answers {{verdict, running, used 1, used 2, used 3, used 4, retry}, instance}; used includes the request if it was admitted.
-- verdict: 0 admitted, 1 to 4 the dimension without room that frees up last, 5 concurrency, 6 another instance.
-- retry: milliseconds until there is room if nothing else happens, -1 for never; 0 unless a dimension is the verdict.
local time = redis.call('TIME')
local slot = tonumber(time[1])
local millis = slot * 1000 + math.floor(tonumber(time[2]) / 1000)
local instance = redis.call('HGET', KEYS[1], 'instance')
-- A request that was taken back before it came is refused as well; nobody waits for its answer.
if (ARGV[12] ~= '' and instance ~= ARGV[12]) or redis.call('HEXISTS', KEYS[3], ARGV[10]) == 1 then
  return {{6, 0, 0, 0, 0, 0, 0}, instance or ''}
end
instance = instance or ARGV[10]
local used = {0, 0, 0, 0}
local by_slot = {{}, {}, {}, {}}
local old = {}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local at, dimension = string.match(fields[i], '^(%d+):(%d)$')
  if at then
    at, dimension = tonumber(at), tonumber(dimension)
    if at <= slot - 61 then
      old[#old + 1] = fields[i]
    else
      local amount = tonumber(fields[i + 1])
      used[dimension] = used[dimension] + amount
      by_slot[dimension][at] = amount
    end
  end
end
if #old > 0 then redis.call('HDEL', KEYS[1], unpack(old)) end
local forgotten = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', slot - 61, 'LIMIT', 0, 100)
if #forgotten > 0 then
  redis.call('HDEL', KEYS[3], unpack(forgotten))
  redis.call('ZREM', KEYS[4], unpack(forgotten))
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', millis)
local running = redis.call('ZCARD', KEYS[2])
local concurrency = tonumber(ARGV[9])
if concurrency >= 0 and running >= concurrency then
  return {{5, running, used[1], used[2], used[3], used[4], 0}, instance}
end
local verdict, retry = 0, 0
for dimension = 1, 4 do
  local limit, cost = tonumber(ARGV[dimension]), tonumber(ARGV[4 + dimension])
  if limit >= 0 and used[dimension] + cost > limit then
    local after, left = -1, used[dimension]
    if cost <= limit then
      for at = slot - 60, slot do
        left = left - (by_slot[dimension][at] or 0)
        if left + cost <= limit then
          after = (at + 61) * 1000 - millis
          break
        end
      end
    end
    if verdict == 0 or (retry ~= -1 and (after == -1 or after > retry)) then
      verdict, retry = dimension, after
    end
  end
end
if verdict > 0 then
  return {{verdict, running, used[1], used[2], used[3], used[4], retry}, instance}
end
for dimension = 1, 4 do
  local cost = tonumber(ARGV[4 + dimension])
  if cost > 0 then
    redis.call('HINCRBY', KEYS[1], string.format('%d:%d', slot, dimension), ARGV[4 + dimension])
    used[dimension] = used[dimension] + cost
  end
end
redis.call('HSET', KEYS[1], 'instance', instance)
redis.call('ZADD', KEYS[2], millis + tonumber(ARGV[11]), ARGV[10])
redis.call('HSET', KEYS[3], ARGV[10], table.concat({slot, ARGV[5], ARGV[6], ARGV[7], ARGV[8]}, ':'))
redis.call('ZADD', KEYS[4], slot, ARGV[10])
for i = 1, 4 do
  if i ~= 2 then redis.call('PEXPIRE', KEYS[i], 62000) end
end
redis.call('PEXPIRE', KEYS[2], ARGV[11], 'NX')
redis.call('PEXPIRE', KEYS[2], ARGV[11], 'GT')
return {{0, running + 1, used[1], used[2], used[3], used[4], 0}, instance}
