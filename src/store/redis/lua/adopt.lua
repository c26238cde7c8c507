-- Replaces the policy of a key by one of a later revision, and carries its usage and its leases over. adoption.rs assembles it for each
-- pair of policies: `@NAME` and `$` as in script.lua. The lines from `--@for FORMER` to `--@end` are repeated for each limit of time of the
-- former policy, those of `--@for LIMITS` for each of the new one, and those of `--@for KINDS` for one limit of each kind of both.
--
-- KEYS  1 the state, 2 the leases by expiry, 3 the costs of those that do not hold one place of each limit; then the logs of both policies
-- reply 1; 0: the key has another policy by now, and nothing was done; 3: the state is damaged
local call, decode, encode, format = redis.call, struct.unpack, struct.pack, string.format
local floor, ceil, max, min, huge = math.floor, math.ceil, math.max, math.min, math.huge
local BIG, NEVER = 4503599627370496, 18446744073709552
--@for KINDS
@HELPERS
--@end
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local raw = call('GET', KEYS[1])
if not raw or raw:sub(1, @FORMER_HEAD_SIZE) ~= '@FORMER_HEAD' then return 0 end
if #raw < @FORMER_SIZE then return 3 end
local words = {decode('@FORMER_FORMAT', raw, @FORMER_HEAD_SIZE + 1)}
for i = 1, #words - 1 do
  if words[i] - words[i] ~= 0 then return 3 end -- a number that is none, or infinite
end
local last, fence, latest, dirty = words[1], words[2], words[4], true
now = max(now, last)
-- For each limit of the former policy: its words, and the units that are used of it, rounded up.
local states, used = {}, {}
--@for FORMER
do
  @DECLARE
  @WORDS = @STORED_WORDS
  @LOAD
  -- A log gets rid of the expired units that are no longer counted: the new limit would subtract them again.
  @WRITE
  states[$], used[$] = {@WORDS}, @USED
end
--@end
last = now
-- odd: for each new concurrency, how many more places its leases hold than one each
local unequal, odd = 0, {@ODD_ZEROS}
if @HAS_PLACES then
  local final = call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
  latest = tonumber(final[2] or 0)
  local all = @HAD_PLACES and call('HGETALL', KEYS[3]) or {}
  for i = 1, #all, 2 do
    local own = {decode('@FORMER_PLACES', all[i + 1])}
    local costs, differs = {@PLACES_FROM}, false
    if call('ZSCORE', KEYS[2], all[i]) then
      for place = 1, #costs do
        odd[place] = odd[place] + costs[place]
        differs = differs or costs[place] ~= 0
      end
    end
    if differs then
      call('HSET', KEYS[3], all[i], encode('@PLACE_DOUBLES', unpack(costs)))
      unequal = unequal + 1
    else
      call('HDEL', KEYS[3], all[i])
    end
  end
end
if unequal == 0 then call('DEL', KEYS[3]) end
local life, packed = max(fence - now + 1, latest - now), ''
--@for LIMITS
do
  @DECLARE
  @CONTINUE
  @LOAD
  local cost$, room = @TAKEN, 1
  if cost$ > 0 then
    @CHARGE
  end
  @WRITE
  @LIFE
  packed = packed .. encode('@WORD_DOUBLES', @WORDS)
end
--@end
if @HAS_PLACES then packed = packed .. encode('<d', unequal) end
life = ceil(min(life, BIG) / 1000) + 1
for log = 4, @ALL_LOGS + 3 do
  if log <= @LOGS + 3 then call('PEXPIRE', KEYS[log], format('%.0f', life)) else call('DEL', KEYS[log]) end
end
call('SET', KEYS[1], '@HEAD' .. encode('<dddd', now, fence, now, latest) .. packed, 'PX', format('%.0f', life))
return 1
