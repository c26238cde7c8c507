-- One call for one key. Assembled for each policy: a line `--@name` is replaced by that section of every limit's fragment, with the
-- limit's numbers as literals and its number for `$`. All instants and times are microseconds.
--
-- KEYS  1 the state; where there are leases or logs: 2 the leases by expiry, 3 the costs of those that do not hold one place of each
--       limit; then one list for each log
-- ARGV  1 packed doubles: valid until, whether the policy is replaced (0, 1), how many runs, how many settlements; each run: count, kind
--       (0 does not wait, 1 waits, 2 a peek), a cost for each limit; each settlement: the instant of the grant, charged and actual cost
--       for each limit; where leases are concerned: TTL, how many returns, how many renewals. Only there: 2 the channel, 3 the key,
--       then the ids of the returns, of the renewals and of the asks with a place
-- reply packed doubles: now, granted, first fence, reclaimed, limit that stops (0: none), until (-1: never, -2: a release), first expiry
--       (-1: none), remaining, when a unit is available, and reset for each limit, then the renewals that came too late, from 0. Or a list:
--       1: too late; 2 and a text: the policy that is stored; 3: the state is damaged
-- state a byte for the version, the policy as text, a zero byte; as doubles: the latest instant, the latest fence, when it began, the
--       latest expiry of a lease, and the words of each limit
local call, decode, encode, format = redis.call, struct.unpack, struct.pack, string.format
local floor, ceil, max, min, huge = math.floor, math.ceil, math.max, math.min, math.huge
local BIG, NEVER, RELEASE = 4503599627370496, 18446744073709552, 18446744073709544
--@helpers
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local raw, stored, from = call('GET', KEYS[1]), nil, nil
local last, fence, born, latest, dirty, reclaimed, lost = now, 0, now, 0, false, 0, nil
--@declare
local packed = ARGV[1]
local valid, replaced, runs, settlements = decode('<dddd', packed)
if raw then
  if raw:sub(1, @HEAD_SIZE) == '@HEAD' then
    if #raw ~= @SIZE then return {3} end
    last, fence, born, latest@WORDS = decode('@FORMAT', raw, @HEAD_SIZE + 1)
    local sum = last + fence + born + latest@SUM
    if sum - sum ~= 0 then return {3} end -- a number that is none, or infinite
    if last > now then now = last end
  else
    stored, from = raw:match('^@VERSION([^%z]*)%z()')
    if not stored or #raw < from + 31 then return {3} end
    if replaced == 0 then return {2, stored} end
    last, fence, born, latest = decode('<dddd', raw, from)
    now = max(now, last)
    last, born, dirty = now, now, true
  end
end
if now >= valid then return {1} end
--@load
if settlements > 0 or ARGV[2] then
  local at = 33 + runs * @RUN
  local lease = at + settlements * @SETTLEMENT
  --@leases
  for _ = 1, settlements do
    local granted_at = decode('<d', packed, at)
    local refunds = granted_at >= born and granted_at <= now
    --@settle
    at, dirty = at + @SETTLEMENT, true
  end
  --@renew
end
local at = 33
local granted, first, stop, rank, first_expiry = 0, fence < now and now or fence + 1, 0, 0, -1
for _ = 1, runs do
  local room = 0
  local count, kind@COSTS = decode('@ASK', packed, at)
  if kind ~= 2 then
    if stop == 0 then
      room = count
      --@room
    end
    if room > 0 then
      granted = granted + room
      --@charge
    end
    --@open
    if room < count and kind == 0 then
      local attempts = min(count - room, 1000)
      --@deny
    end
  end
  if stop == 0 and (room < count or kind == 2) then
    --@stop
  end
  at = at + @RUN
end
if granted > 0 then fence, dirty = first + granted - 1, true end
--@available
--@write
rank = rank == huge and -1 or rank == RELEASE and -2 or rank
local reply = encode('@REPLY', now, granted, first, reclaimed, stop, rank, first_expiry@REPORT)
if lost then reply = reply .. table.concat(lost) end
if dirty then
  local life = fence - now + 1
  if latest - now > life then life = latest - now end
  --@life
  if life > BIG then life = BIG end
  if life > 0 then
    -- An integer of few digits is written in full.
    call('SET', KEYS[1], '@HEAD' .. encode('@FORMAT', now, fence, born, latest@WORDS), 'PX', ceil(life / 1000) + 1)
  elseif raw then
    call('DEL', KEYS[1])
  end
  --@publish
end
return reply
