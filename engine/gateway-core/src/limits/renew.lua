-- Prolongs the leases of running requests, so that only those of a replica that died run out.
--
-- KEYS[1-2] as for charging
-- ARGV[1]   the instance that this account must be
-- ARGV[2]   the length of a lease in milliseconds
-- ARGV[3..] ids of running requests
--
-- Answers 1, or 0 if this is another instance and nothing was done.
if redis.call('HGET', KEYS[1], 'instance') ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local ends = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[2])
for i = 3, #ARGV do
  redis.call('ZADD', KEYS[2], 'GT', ends, ARGV[i])
end
redis.call('PEXPIRE', KEYS[1], 62000)
redis.call('PEXPIRE', KEYS[2], ARGV[2], 'NX')
redis.call('PEXPIRE', KEYS[2], ARGV[2], 'GT')
return 1
