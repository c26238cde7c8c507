-- One call for one key. script.rs assembles it for each policy. The lines from `--@for` to `--@end` are repeated for each limit (LIMITS),
-- for each concurrency (PLACES), or for one limit of each kind (KINDS). `@NAME` is a value of the limit or of the policy: a number, or a
-- section of the limit's fragment. `$` is the number of the limit. All instants and times are microseconds.
--
-- KEYS  1 the state; where there are leases or logs: 2 the leases by expiry, 3 the costs of those that do not hold one place of each
--       limit; then one list for each log
-- ARGV  1 packed doubles: valid until, the sum of 1 if the policy is kept for long and 2 if no request of the holder waits any more, how many
--       runs, how many settlements, the holder (eight bytes), how often it polls for a place, or 0 if it hears of its turns; each run:
--       count, kind (0 does not wait, 1 waits, 2 a peek, 3 prefetches), a cost for each limit; each settlement: the instant of the
--       grant, charged and actual cost for each limit; where leases are concerned: TTL, how many returns, how many renewals. Only there: 2 the channel, 3 the key,
--       then the ids of the returns, of the renewals and of the asks with a place
-- reply packed doubles: now, granted, first fence, reclaimed, limit that stops (0: none), until (-1: never, -2: a release), first expiry
--       (-1: none), remaining, when a unit is available, and reset for each limit, then the renewals that came too late, from 0. Or a list:
--       1: too late; 2 and a text: the policy that is stored; 3: the state is damaged
-- state a byte for the version, the policy as text, `#` and its revision unless that is 0, a zero byte; as doubles: the latest instant, the latest fence, when it began, the
--       latest expiry of a lease, and the words of each limit; if replicas wait, the line of line.lua
local call, decode, encode, format = redis.call, struct.unpack, struct.pack, string.format
local floor, ceil, max, min, huge = math.floor, math.ceil, math.max, math.min, math.huge
local BIG, NEVER, RELEASE = 4503599627370496, 18446744073709552, 18446744073709544
--@for KINDS
@HELPERS
--@end
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local raw = call('GET', KEYS[1])
local last, fence, born, latest, dirty, reclaimed, lost = now, 0, now, 0, false, 0, nil
-- held: how many leases there are. unequal: how many of them do not hold one place of each limit; KEYS[3] has their costs.
local held, unequal, freed = 0, 0, 0
local channel, key, ttl, next_id, odd_costs, opened
-- line: the tickets of the replicas that wait; nil if none does
local line
local returned = 0
if @HAS_PLACES then odd_costs, opened = {}, {} end
--@for LIMITS
@DECLARE
--@end
local packed = ARGV[1]
local valid, flags, runs, settlements = decode('<dddd', packed)
local waits_no_more, keeps_policy = flags >= 2, flags % 2 == 1
if raw then
  if raw:sub(1, @HEAD_SIZE) == '@HEAD' then
    if #raw ~= @SIZE then
      if #raw < @SIZE or (#raw - @SIZE - 8) % @TICKET ~= 0 then return {3} end
      @LINE
      line = open_line(raw, @SIZE + 1)
    end
    last, fence, born, latest@ALL_WORDS = decode('@FORMAT', raw, @HEAD_SIZE + 1)
    local sum = last + fence + born + latest@SUM
    if sum - sum ~= 0 then return {3} end -- a number that is none, or infinite
    if last > now then now = last end
  else
    local stored = raw:match('^@VERSION([^%z]*)%z')
    return stored and {2, stored} or {3}
  end
end
if now >= valid then return {1} end
--@for LIMITS
do
  @LOAD
end
--@end
if settlements > 0 or ARGV[2] then
  local at = 49 + runs * @RUN
  local lease = at + settlements * @SETTLEMENT
  channel, key, next_id = ARGV[2], ARGV[3], 4
  local returns, renewals, odd_ids = 0, 0, {}
  if channel then
    ttl, returns, renewals = decode('<ddd', packed, lease)
    local expired = (unequal > 0 or line) and call('ZRANGEBYSCORE', KEYS[2], '-inf', format('%.0f', now))
    if not expired or #expired > 0 then reclaimed = call('ZREMRANGEBYSCORE', KEYS[2], '-inf', format('%.0f', now)) end
    odd_ids = expired or odd_ids
    for i = 1, line and #odd_ids or 0 do line.take_back(odd_ids[i], @PLACE_COUNT) end
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
    if line then line.take_back(packed:sub(33, 40), freed * @PLACE_COUNT) end
    returned = returns
    dirty = dirty or reclaimed + freed > 0
    for i = 1, #odd_ids do
      local costs = call('HGET', KEYS[3], odd_ids[i])
      if costs then
        call('HDEL', KEYS[3], odd_ids[i])
        unequal = unequal - 1
        local own = {decode('@PLACE_DOUBLES', costs)}
        --@for PLACES
        odd$ = odd$ - own[@PLACE]
        if line then line.take_back(odd_ids[i], own[@PLACE]) end
        --@end
      end
    end
    held = call('ZCARD', KEYS[2])
    if held > 0 and not raw then
      -- The state was evicted, and the leases were not.
      local all = call('HGETALL', KEYS[3])
      for i = 2, #all, 2 do
        local costs = all[i]
        if call('ZSCORE', KEYS[2], all[i - 1]) then
          unequal = unequal + 1
          local own = {decode('@PLACE_DOUBLES', costs)}
          --@for PLACES
          odd$ = odd$ + own[@PLACE]
          --@end
        end
      end
      latest, dirty = tonumber(call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]), true
    end
    if held == 0 then
      unequal, latest = 0, 0
      --@for PLACES
      odd$ = 0
      --@end
    end
    next_id = next_id + returns
  end
  for _ = 1, settlements do
    local granted_at = decode('<d', packed, at)
    local refunds = granted_at >= born and granted_at <= now
    --@for LIMITS
    do
      @SETTLE
    end
    --@end
    at, dirty = at + @SETTLEMENT, true
  end
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
end
local at = 49
if line then line.begin(freed > 0) end
local asked, taken, wanted, wanted_costs, last_costs = false, 0, 0, nil, nil
local granted, first, stop, rank, first_expiry = 0, fence < now and now or fence + 1, 0, 0, -1
for _ = 1, runs do
  local room = 0
  local count, kind@COSTS = decode('@ASK', packed, at)
  local costs = line and {select(2, 0@COSTS)}
  local is_free = max(0@COSTS) == 0 -- it takes nothing from others, so it has no turn
  if kind ~= 2 then
    if line and not asked then line.bound(costs) end
    asked, last_costs = true, costs
    if stop == 0 then
      room = count
      --@for LIMITS
      do
        @ROOM
      end
      --@end
      if line and room > 0 and not is_free then room = line.room(room, {select(2, 0@LEFT)}, costs) end
    end
    if room > 0 then
      granted, taken = granted + room, taken + room * max(1@COSTS)
      if line and not is_free then line.advance(room, costs) end
      --@for LIMITS
      do
        @CHARGE
      end
      --@end
    end
    if @HAS_PLACES and 0@PLACE_COSTS > 0 then
      if room > 0 then
        local odd_cost = not (true@ONE_EACH) and encode('@PLACE_DOUBLES'@ODD_COSTS)
        local till = format('%.0f', now + ttl)
        for i = next_id, next_id + room - 1 do
          opened[#opened + 1], opened[#opened + 2] = till, ARGV[i]
          if odd_cost then odd_costs[#odd_costs + 1], odd_costs[#odd_costs + 2] = ARGV[i], odd_cost end
        end
        held, latest = held + room, max(latest, now + ttl)
      end
      next_id = next_id + min(count@MOST_LEASES)
    end
    if room < count and kind == 1 then
      if wanted == 0 then wanted_costs = costs or {select(2, 0@COSTS)} end
      wanted = wanted + count - room
    elseif room < count and kind == 0 then
      local attempts = min(count - room, 1000)
      --@for LIMITS
      do
        @DENY
      end
      --@end
    end
  end
  if stop == 0 and (room < count or kind == 2) then
    -- Finds the limit that stops the ask longest, or the first of several. A limit whose capacity is less than the cost stops it
    -- for ever. The units of others whose turn comes before are waited for, too, in rounds if they exceed the capacity.
    local before = line and line.before()
    --@for LIMITS
    if cost$ > 0 then
      local t, own, rounds = nil, cost$, 0
      local cost$ = before and before[$] + cost$ or cost$
      @ROUNDS
      @WHEN
      if rounds > 0 then t = (t or now) + rounds * @ROUND end
      if t and (own > @CAPACITY or t >= NEVER) then t = huge end
      if t and t > rank then rank, stop = t, $ end
    end
    --@end
    if stop == 0 and kind ~= 2 then
      -- Others are taken to want more units than they have asked for.
      --@for LIMITS
      if stop == 0 and cost$ > 0 then rank, stop = now + 2000, $ end
      --@end
    end
  end
  at = at + @RUN
end
if granted > 0 then fence, dirty = first + granted - 1, true end
if wanted > 0 and not line then
  @LINE
  line = open_line('', 1)
end
if line and (asked or returned > 0 or waits_no_more) then
  local due = rank > 0 and rank < RELEASE and rank or 0
  rank = line.finish(rank == huge and 0 or wanted, wanted_costs or last_costs, due, taken) or rank
  dirty = true
end
-- When a limit with nothing left admits a unit. For a concurrency, this is unknown.
--@for LIMITS
local available$ = now
if (@REMAINING) == 0 then
  local t, cost$ = now, 1
  @WHEN
  if t and t ~= RELEASE then available$ = min(t, NEVER) end
end
--@end
--@for LIMITS
do
  @WRITE
end
--@end
if @HAS_PLACES then
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
end
if @HAS_PLACES and line and (asked or runs == 0) then
  local offered, next_holder = line.offer({select(2, 0@LEFT)})
  for i = 1, #offered do call('PUBLISH', channel, offered[i] .. next_holder .. key) end
  dirty = dirty or #offered > 0
end
rank = rank == huge and -1 or rank == RELEASE and -2 or rank
local reply = encode('@REPLY', now, granted, first, reclaimed, stop, rank, first_expiry@REPORT)
if lost then reply = reply .. table.concat(lost) end
if keeps_policy and not dirty then dirty = call('PTTL', KEYS[1]) < @KEEPS / 2000 end
if dirty then
  local life = fence - now + 1
  if latest - now > life then life = latest - now end
  --@for LIMITS
  do
    @LIFE
  end
  --@end
  if line then life = max(life, line.life()) end
  if keeps_policy then life = max(life, @KEEPS) end
  if life > BIG then life = BIG end
  if life > 0 then
    -- The expiry has few enough digits to be written in full.
    call('SET', KEYS[1], '@HEAD' .. encode('@FORMAT', now, fence, born, latest@ALL_WORDS) .. (line and line.pack() or ''), 'PX', ceil(life / 1000) + 1)
  elseif raw then
    call('DEL', KEYS[1])
  end
end
return reply
