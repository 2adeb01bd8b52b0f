-- Checks the limits of a key, its project and its tenant, and reserves in all three or in none.
--
-- Levels are GCRA in its leaky-bucket form (ITU-T I.371, annex A.1): a level drains at its limit per minute, and a
-- request conforms when level + cost <= limit. Time is the server's. All keys of a tenant share a hash tag.
--
-- KEYS: 1 epoch, 2 day, then for key, project, tenant: 3/5/7 levels (hash t r i o), 4/6/8 leases (sorted set).
-- ARGV: 1 to 18 the scopes, six values each: id, requests/min, input/min, output/min, concurrency, tokens/day (-1 = no
-- limit); 19 the operation; from 20 on its arguments. Costs are at least 1.
local MINUTE_US = 60000000
local DAY_S = 86400
local SLOP = 0.000001 -- rounding error of a double that should be a whole number is below this
local KINDS = {'r', 'i', 'o'}

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local today = math.floor(time[1] / DAY_S)

local function read_scopes()
  local scopes = {}
  for index = 1, 3 do
    local at = 1 + (index - 1) * 6
    scopes[index] = {
      id = ARGV[at],
      limit = {r = tonumber(ARGV[at + 1]), i = tonumber(ARGV[at + 2]), o = tonumber(ARGV[at + 3])},
      concurrency = tonumber(ARGV[at + 4]),
      per_day = tonumber(ARGV[at + 5]),
      levels_key = KEYS[1 + 2 * index],
      leases_key = KEYS[2 + 2 * index],
    }
  end
  return scopes
end

local function limited(scope)
  return scope.limit.r >= 0 or scope.limit.i >= 0 or scope.limit.o >= 0
end

-- The levels of a scope, drained up to now.
local function levels_of(scope)
  local levels = {r = 0, i = 0, o = 0}
  if not limited(scope) then
    return levels
  end
  local stored = redis.call('HMGET', scope.levels_key, 't', 'r', 'i', 'o')
  local elapsed = math.max(0, now - (tonumber(stored[1]) or now))
  for index, kind in ipairs(KINDS) do
    local limit = scope.limit[kind]
    if limit >= 0 then
      levels[kind] = math.max(0, (tonumber(stored[index + 1]) or 0) - elapsed * limit / MINUTE_US)
    end
  end
  return levels
end

local function store_levels(scope, levels)
  if not limited(scope) then
    return
  end
  local drained_s = 0
  for _, kind in ipairs(KINDS) do
    if scope.limit[kind] > 0 then
      drained_s = math.max(drained_s, 60 * levels[kind] / scope.limit[kind])
    end
  end
  redis.call('HSET', scope.levels_key, 't', string.format('%.0f', now), 'r', string.format('%.6f', levels.r),
    'i', string.format('%.6f', levels.i), 'o', string.format('%.6f', levels.o))
  redis.call('EXPIRE', scope.levels_key, math.min(30 * DAY_S, math.ceil(drained_s) + 60))
end

-- Tokens of a scope today; nil when they were neither counted nor seeded yet.
local function tokens_today(scope)
  if redis.call('HGET', KEYS[2], 'day') ~= tostring(today) then
    return nil
  end
  return tonumber(redis.call('HGET', KEYS[2], scope.id) or nil)
end

local function hold_lease(scope, lease, ttl_us)
  redis.call('ZADD', scope.leases_key, string.format('%.0f', now + ttl_us), lease)
  redis.call('PEXPIRE', scope.leases_key, math.ceil(ttl_us / 1000) + 1000)
end

local function acquire()
  local new_epoch, lease, ttl_us = ARGV[20], ARGV[21], tonumber(ARGV[22])
  local costs = {r = 1, i = tonumber(ARGV[23]), o = tonumber(ARGV[24])}
  local scopes = read_scopes()
  local epoch = redis.call('GET', KEYS[1])
  local counts = {}
  for index, scope in ipairs(scopes) do
    if scope.per_day >= 0 then
      counts[index] = epoch and tokens_today(scope)
      if not counts[index] then
        return {2, today}
      end
    end
  end

  local worst = nil -- the refusal with the longest wait, so that a retry then is not refused by another limit
  local function refuse(index, kind, wait_us, blocked_us, limit)
    if not worst or wait_us > worst[4] then
      worst = {0, index, kind, math.ceil(wait_us), math.ceil(math.max(0, blocked_us)), limit}
    end
  end
  local levels = {}
  for index, scope in ipairs(scopes) do
    levels[index] = levels_of(scope)
    for _, kind in ipairs(KINDS) do
      local limit = scope.limit[kind]
      local after = levels[index][kind] + math.min(costs[kind], limit)
      if limit == 0 then
        refuse(index, kind, MINUTE_US, MINUTE_US, limit)
      elseif limit > 0 and after > limit + SLOP then
        local blocked = levels[index][kind] + 1 - limit
        refuse(index, kind, (after - limit) * MINUTE_US / limit, blocked * MINUTE_US / limit, limit)
      end
    end
    if scope.concurrency >= 0 then
      redis.call('ZREMRANGEBYSCORE', scope.leases_key, '-inf', string.format('%.0f', now))
      if redis.call('ZCARD', scope.leases_key) >= scope.concurrency then
        refuse(index, 'c', 1000000, 0, scope.concurrency)
      end
    end
    if scope.per_day >= 0 then
      local cost = math.min(costs.i + costs.o, scope.per_day)
      if counts[index] + cost > scope.per_day or scope.per_day == 0 then
        local midnight_us = (today + 1) * DAY_S * 1000000 - now
        refuse(index, 'd', midnight_us, counts[index] >= scope.per_day and midnight_us or 0, scope.per_day)
      end
    end
  end
  if worst then
    return worst
  end

  if not epoch then
    epoch = new_epoch
    redis.call('SET', KEYS[1], epoch)
  end
  redis.call('EXPIRE', KEYS[1], 2 * DAY_S)
  local answer = {1, epoch, today}
  for index, scope in ipairs(scopes) do
    for _, kind in ipairs(KINDS) do
      if scope.limit[kind] >= 0 then
        levels[index][kind] = levels[index][kind] + costs[kind]
      end
      answer[#answer + 1] = math.ceil(levels[index][kind] - SLOP)
    end
    store_levels(scope, levels[index])
    if scope.concurrency >= 0 then
      hold_lease(scope, lease, ttl_us)
    end
    if scope.per_day >= 0 then
      redis.call('HINCRBY', KEYS[2], scope.id, costs.i + costs.o)
    end
  end
  return answer
end

-- Correct a reservation to what was used. If the epoch has changed since, remove only the lease.
local function settle()
  local epoch, lease, day = ARGV[20], ARGV[21], tonumber(ARGV[22])
  local deltas = {r = tonumber(ARGV[23]), i = tonumber(ARGV[24]), o = tonumber(ARGV[25])}
  local used = tonumber(ARGV[26])
  local same = redis.call('GET', KEYS[1]) == epoch
  for _, scope in ipairs(read_scopes()) do
    if scope.concurrency >= 0 then
      redis.call('ZREM', scope.leases_key, lease)
    end
    if same then
      local levels = levels_of(scope)
      for _, kind in ipairs(KINDS) do
        if scope.limit[kind] >= 0 then
          levels[kind] = math.max(0, levels[kind] + deltas[kind])
        end
      end
      store_levels(scope, levels)
      if scope.per_day >= 0 and tokens_today(scope) then
        redis.call('HINCRBY', KEYS[2], scope.id, day == today and deltas.i + deltas.o or used)
      end
    end
  end
  return {1}
end

-- Count one request that was never acquired, also above the limits: what exceeds them is a debt. Answers the levels of
-- requests in thousandths.
local function charge()
  local answer = {1}
  for _, scope in ipairs(read_scopes()) do
    local levels = levels_of(scope)
    if scope.limit.r >= 0 then
      levels.r = levels.r + 1
      store_levels(scope, levels)
    end
    answer[#answer + 1] = math.ceil(levels.r * 1000)
  end
  return answer
end

-- Renew leases; one that was lost with the server's memory is created again.
local function renew()
  local ttl_us = tonumber(ARGV[20])
  local scopes = read_scopes()
  for at = 21, #ARGV do
    for _, scope in ipairs(scopes) do
      if scope.concurrency >= 0 then
        hold_lease(scope, ARGV[at], ttl_us)
      end
    end
  end
  return {1}
end

-- Set day counters that do not exist yet; ARGV 22 on are pairs of scope id and tokens.
local function seed()
  local new_epoch, day = ARGV[20], tonumber(ARGV[21])
  if day ~= today then
    return {2, today}
  end
  if redis.call('HGET', KEYS[2], 'day') ~= tostring(today) then
    redis.call('DEL', KEYS[2])
    redis.call('HSET', KEYS[2], 'day', tostring(today))
    redis.call('EXPIRE', KEYS[2], 2 * DAY_S)
  end
  if not redis.call('GET', KEYS[1]) then
    redis.call('SET', KEYS[1], new_epoch, 'EX', 2 * DAY_S)
  end
  for at = 22, #ARGV, 2 do
    redis.call('HSETNX', KEYS[2], ARGV[at], ARGV[at + 1])
  end
  return {1}
end

local operations = {acquire = acquire, settle = settle, charge = charge, renew = renew, seed = seed}
return operations[ARGV[19]]()
