-- Prolongs the leases of running requests, so that only those of a replica that died run out.
--
-- KEYS[1]   the sorted set of charging
-- ARGV[1]   the length of a lease in milliseconds
-- ARGV[2..] ids of running requests
--
-- Answers how many still had a lease.
local time = redis.call('TIME')
local ends = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[1])
local renewed = 0
for i = 2, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], 'GT', ends, ARGV[i])
    renewed = renewed + 1
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1], 'GT')
return renewed
