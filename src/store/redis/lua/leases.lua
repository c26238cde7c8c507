-- The leases of a policy. held: how many there are. unequal: how many of them do not hold one place of each limit; KEYS[3] has their
-- costs.
--@declare
local held, unequal, freed = 0, 0, 0
local channel, key, ttl, next_id
--@declare_places
local odd_costs, opened = {}, {}
--@leases
channel, key, next_id = ARGV[2], ARGV[3], 4
local returns, renewals, odd_ids = 0, 0, {}
if channel then
  ttl, returns, renewals = decode('<ddd', packed, lease)
  if unequal > 0 then odd_ids = call('ZRANGEBYSCORE', KEYS[2], '-inf', format('%.0f', now)) end
  reclaimed = call('ZREMRANGEBYSCORE', KEYS[2], '-inf', format('%.0f', now))
  if unequal > 0 then
    for i = next_id, next_id + returns - 1 do
      if call('ZREM', KEYS[2], ARGV[i]) == 1 then
        freed = freed + 1
        odd_ids[#odd_ids + 1] = ARGV[i]
      end
    end
  else
    for i = next_id, next_id + returns - 1, 1000 do
      freed = freed + call('ZREM', KEYS[2], unpack(ARGV, i, min(i + 999, next_id + returns - 1)))
    end
  end
  dirty = dirty or reclaimed + freed > 0
  for i = 1, #odd_ids do
    local costs = call('HGET', KEYS[3], odd_ids[i])
    if costs then
      call('HDEL', KEYS[3], odd_ids[i])
      unequal = unequal - 1
      @FORGET
    end
  end
  held = call('ZCARD', KEYS[2])
  if stored then
    call('DEL', KEYS[3])
  elseif held > 0 and not raw then
    -- The state was evicted, and the leases were not.
    local all = call('HGETALL', KEYS[3])
    for i = 2, #all, 2 do
      local costs = all[i]
      if call('ZSCORE', KEYS[2], all[i - 1]) then
        unequal = unequal + 1
        @REMEMBER
      end
    end
    latest, dirty = tonumber(call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]), true
  end
  if held == 0 then
    unequal, latest = 0, 0
    @NONE
  end
  next_id = next_id + returns
end
--@renew
if renewals > 0 then
  local changed, till = 0, format('%.0f', now + ttl)
  for from = next_id, next_id + renewals - 1, 1000 do
    local args = {}
    for i = from, min(from + 999, next_id + renewals - 1) do
      args[#args + 1], args[#args + 2] = till, ARGV[i]
    end
    changed = changed + call('ZADD', KEYS[2], 'XX', 'CH', unpack(args))
  end
  if changed < renewals then
    lost = {}
    for i = next_id, next_id + renewals - 1 do
      if not call('ZSCORE', KEYS[2], ARGV[i]) then lost[#lost + 1] = encode('<d', i - next_id) end
    end
  end
  if not lost or #lost < renewals then
    latest, dirty = max(latest, now + ttl), true
    call('PEXPIRE', KEYS[2], ceil((latest - now) / 1000) + 1)
    if unequal > 0 then call('PEXPIRE', KEYS[3], ceil((latest - now) / 1000) + 1) end
  end
  next_id = next_id + renewals
end
--@open
if @ANY_PLACE then
  if room > 0 then
    local odd_cost = not (@ONE_EACH) and encode('@DOUBLES'@ODD_COSTS)
    local till = format('%.0f', now + ttl)
    for i = next_id, next_id + room - 1 do
      opened[#opened + 1], opened[#opened + 2] = till, ARGV[i]
      if odd_cost then odd_costs[#odd_costs + 1], odd_costs[#odd_costs + 2] = ARGV[i], odd_cost end
    end
    held, latest = held + room, max(latest, now + ttl)
  end
  next_id = next_id + min(count@MOST_LEASES)
end
--@write
for i = 1, #opened, 2000 do
  call('ZADD', KEYS[2], unpack(opened, i, min(i + 1999, #opened)))
end
for i = 1, #odd_costs, 2000 do
  call('HSET', KEYS[3], unpack(odd_costs, i, min(i + 1999, #odd_costs)))
end
if #opened > 0 then
  unequal = unequal + #odd_costs / 2
  call('PEXPIRE', KEYS[2], ceil((latest - now) / 1000) + 1)
  if unequal > 0 then call('PEXPIRE', KEYS[3], ceil((latest - now) / 1000) + 1) end
end
if rank == RELEASE then
  local earliest = call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  first_expiry = tonumber(earliest[2] or -1)
end
--@publish
if freed + reclaimed > 0 then call('PUBLISH', channel, key) end
