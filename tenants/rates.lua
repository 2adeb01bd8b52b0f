-- Checks the limits of a key, its project and its tenant, and reserves in all of them or in none.
--
-- Levels are GCRA in its leaky-bucket form (ITU-T I.371, annex A.1): a level drains at its limit per minute, and a
-- request conforms when level + cost <= limit. Time is the server's. All keys of a tenant share a hash tag.
--
-- Only scopes with a limit are passed. KEYS: 1 epoch, 2 day, then for each scope its levels and its leases (sorted set).
-- ARGV: 1 the scopes, packed one after another as SCOPE; 2 the operation; from 3 on its arguments.
-- Levels are one string packed as LEVELS. Costs are at least 1.
local MINUTE_US = 60000000
local DAY_S = 86400
local SLOP = 0.000001 -- rounding error of a double that should be a whole number is below this
-- number (1 key, 2 project, 3 tenant), id, requests/min, input/min, output/min, concurrency, tokens/day; -1 = no limit
local SCOPE = '<Bc36ddddd'
local LEVELS = '<dddd' -- microseconds since 1970, requests, input tokens, output tokens
local KINDS = {'r', 'i', 'o'}

local call, pack, unpack = redis.call, struct.pack, struct.unpack
local max, min, ceil = math.max, math.min, math.ceil

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local today = math.floor(time[1] / DAY_S)

local function read_scopes()
  local packed, scopes, at = ARGV[1], {}, 1
  for index = 1, (#KEYS - 2) / 2 do
    local number, id, r, i, o, concurrency, per_day
    number, id, r, i, o, concurrency, per_day, at = unpack(SCOPE, packed, at)
    scopes[index] = {
      number = number,
      id = id,
      limit = {r, i, o},
      limited = r >= 0 or i >= 0 or o >= 0,
      concurrency = concurrency,
      per_day = per_day,
      levels_key = KEYS[1 + 2 * index],
      leases_key = KEYS[2 + 2 * index],
    }
  end
  return scopes
end

-- The levels of a scope by number of the kind, drained up to now.
local function levels_of(scope)
  local stored = scope.limited and call('GET', scope.levels_key)
  if not stored then
    return {0, 0, 0}
  end
  local at, r, i, o = unpack(LEVELS, stored)
  local minutes = max(0, now - at) / MINUTE_US
  local limit = scope.limit
  return {
    limit[1] >= 0 and max(0, r - minutes * limit[1]) or 0,
    limit[2] >= 0 and max(0, i - minutes * limit[2]) or 0,
    limit[3] >= 0 and max(0, o - minutes * limit[3]) or 0,
  }
end

local function store_levels(scope, levels)
  if not scope.limited then
    return
  end
  local drained_s = 0
  for kind = 1, 3 do
    if scope.limit[kind] > 0 then
      drained_s = max(drained_s, 60 * levels[kind] / scope.limit[kind])
    end
  end
  local ttl_s = min(30 * DAY_S, ceil(drained_s) + 60)
  call('SET', scope.levels_key, pack(LEVELS, now, levels[1], levels[2], levels[3]), 'EX', ttl_s)
end

-- Tokens of a scope today; nil when they were neither counted nor seeded yet.
local function tokens_today(scope)
  local counted = call('HMGET', KEYS[2], 'day', scope.id)
  return counted[1] == tostring(today) and tonumber(counted[2] or nil) or nil
end

local function hold_lease(scope, lease, ttl_us)
  call('ZADD', scope.leases_key, string.format('%.0f', now + ttl_us), lease)
  call('PEXPIRE', scope.leases_key, ceil(ttl_us / 1000) + 1000)
end

-- Arguments: lease, which is also the epoch if there is none; '<ddd': microseconds of the lease, input and output tokens.
local function acquire()
  local lease = ARGV[3]
  local ttl_us, input, output = unpack('<ddd', ARGV[4])
  local costs = {1, input, output}
  local scopes = read_scopes()
  local epoch = call('GET', KEYS[1])
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
  local function refuse(scope, kind, wait_us, blocked_us, limit)
    if not worst or wait_us > worst[4] then
      worst = {0, scope.number, kind, ceil(wait_us), ceil(max(0, blocked_us)), limit}
    end
  end
  local levels = {}
  for index, scope in ipairs(scopes) do
    local held = levels_of(scope)
    levels[index] = held
    for kind = 1, 3 do
      local limit = scope.limit[kind]
      if limit == 0 then
        refuse(scope, KINDS[kind], MINUTE_US, MINUTE_US, limit)
      elseif limit > 0 then
        local after = held[kind] + min(costs[kind], limit)
        if after > limit + SLOP then
          local blocked = held[kind] + 1 - limit
          refuse(scope, KINDS[kind], (after - limit) * MINUTE_US / limit, blocked * MINUTE_US / limit, limit)
        end
      end
    end
    if scope.concurrency >= 0 then
      call('ZREMRANGEBYSCORE', scope.leases_key, '-inf', string.format('%.0f', now))
      if call('ZCARD', scope.leases_key) >= scope.concurrency then
        refuse(scope, 'c', 1000000, 0, scope.concurrency)
      end
    end
    if scope.per_day >= 0 then
      local cost = min(input + output, scope.per_day)
      if counts[index] + cost > scope.per_day or scope.per_day == 0 then
        local midnight_us = (today + 1) * DAY_S * 1000000 - now
        refuse(scope, 'd', midnight_us, counts[index] >= scope.per_day and midnight_us or 0, scope.per_day)
      end
    end
  end
  if worst then
    return worst
  end

  if epoch then
    call('EXPIRE', KEYS[1], 2 * DAY_S)
  else
    epoch = lease
    call('SET', KEYS[1], epoch, 'EX', 2 * DAY_S)
  end
  local answer = {1, epoch, today}
  for index, scope in ipairs(scopes) do
    local held = levels[index]
    for kind = 1, 3 do
      if scope.limit[kind] >= 0 then
        held[kind] = held[kind] + costs[kind]
      end
      answer[#answer + 1] = ceil(held[kind] - SLOP)
    end
    store_levels(scope, held)
    if scope.concurrency >= 0 then
      hold_lease(scope, lease, ttl_us)
    end
    if scope.per_day >= 0 then
      call('HINCRBY', KEYS[2], scope.id, input + output)
    end
  end
  return answer
end

-- Correct a reservation to what was used. If the epoch has changed since, remove only the lease.
-- Arguments: epoch; lease; '<ddddd': day, differences of requests, input and output tokens, tokens used.
local function settle()
  local epoch, lease = ARGV[3], ARGV[4]
  local day, requests, input, output, used = unpack('<ddddd', ARGV[5])
  local deltas = {requests, input, output}
  local same = call('GET', KEYS[1]) == epoch
  for _, scope in ipairs(read_scopes()) do
    if scope.concurrency >= 0 then
      call('ZREM', scope.leases_key, lease)
    end
    if same and scope.limited then
      local levels = levels_of(scope)
      for kind = 1, 3 do
        if scope.limit[kind] >= 0 then
          levels[kind] = max(0, levels[kind] + deltas[kind])
        end
      end
      store_levels(scope, levels)
    end
    if same and scope.per_day >= 0 and tokens_today(scope) then
      call('HINCRBY', KEYS[2], scope.id, day == today and input + output or used)
    end
  end
  return {1}
end

-- Count one request that was never acquired, also above the limits: what exceeds them is a debt. Answers the levels of
-- requests in thousandths.
local function charge()
  local answer = {1}
  for index, scope in ipairs(read_scopes()) do
    local levels = levels_of(scope)
    if scope.limit[1] >= 0 then
      levels[1] = levels[1] + 1
      store_levels(scope, levels)
    end
    answer[1 + index] = ceil(levels[1] * 1000)
  end
  return answer
end

-- Renew leases; one that was lost with the server's memory is created again. Arguments: microseconds, leases.
local function renew()
  local ttl_us = tonumber(ARGV[3])
  local scopes = read_scopes()
  for at = 4, #ARGV do
    for _, scope in ipairs(scopes) do
      if scope.concurrency >= 0 then
        hold_lease(scope, ARGV[at], ttl_us)
      end
    end
  end
  return {1}
end

-- Set day counters that do not exist yet. Arguments: an epoch in case there is none, day, pairs of scope id and tokens.
local function seed()
  local new_epoch, day = ARGV[3], tonumber(ARGV[4])
  if day ~= today then
    return {2, today}
  end
  if call('HGET', KEYS[2], 'day') ~= tostring(today) then
    call('DEL', KEYS[2])
    call('HSET', KEYS[2], 'day', tostring(today))
    call('EXPIRE', KEYS[2], 2 * DAY_S)
  end
  if not call('GET', KEYS[1]) then
    call('SET', KEYS[1], new_epoch, 'EX', 2 * DAY_S)
  end
  for at = 5, #ARGV, 2 do
    call('HSETNX', KEYS[2], ARGV[at], ARGV[at + 1])
  end
  return {1}
end

local operations = {acquire = acquire, settle = settle, charge = charge, renew = renew, seed = seed}
return operations[ARGV[2]]()
