-- A sliding log: a list of (instant, units), oldest first. sum$: the units in the list. oldest$: no entry is older. newest$: the
-- latest entry. gone$: expired entries that are still in the list.
--@HELPERS
local function entries(key, from, to, visit)
  while true do
    local page = call('LRANGE', key, from, to)
    for i = 1, #page do
      if #page[i] ~= 16 then error('a log holds something else') end
      if not visit(decode('<dd', page[i])) then return end
    end
    if #page <= to - from then return end
    from, to = to + 1, to + 1024
  end
end
local function give_back(key, instant, units)
  local index, length = -1, call('LLEN', key)
  while index >= -length do
    local page = call('LRANGE', key, max(-length, index - 63), index)
    for i = #page, 1, -1 do
      local entry, had = decode('<dd', page[i])
      if entry < instant then return 0 end
      if entry == instant then
        if had > units then
          call('LSET', key, index - #page + i, encode('<dd', entry, had - units))
          return units
        end
        call('LSET', key, index - #page + i, '')
        call('LREM', key, -1, '')
        return had < units and had + give_back(key, instant, units - had) or had
      end
    end
    index = index - 64
  end
  return 0
end
--@DECLARE
local sum$, oldest$, newest$, gone$, add$ = 0, 0, 0, 0, 0
--@LOAD
if sum$ > 0 and oldest$ + @PERIOD <= now then
  local found = false
  entries(KEYS[@LOG_KEY], 0, 31, function(instant, units)
    oldest$, found = instant, instant + @PERIOD > now
    if not found then sum$, gone$ = sum$ - units, gone$ + 1 end
    return not found
  end)
  if not found or sum$ < 0 then sum$, gone$ = 0, 0 end
end
--@SETTLE
local charged, actual = decode('<d', packed, at + @CHARGED), decode('<d', packed, at + @ACTUAL)
if actual > charged then
  add$ = add$ + actual - charged
  sum$ = sum$ + actual - charged
elseif refunds and actual < charged and granted_at + @PERIOD > now and sum$ > add$ then
  local back = charged - actual
  sum$ = max(add$, sum$ - give_back(KEYS[@LOG_KEY], granted_at, back))
  local tail = call('LINDEX', KEYS[@LOG_KEY], -1)
  if tail then newest$ = decode('<d', tail) end
end
--@ROOM
if cost$ > 0 then room = min(room, floor(max(0, @LIMIT - sum$) / cost$)) end
--@CHARGE
add$, sum$ = add$ + room * cost$, sum$ + room * cost$
--@WHEN
t = nil
if sum$ + cost$ > @LIMIT then
  local must = sum$ + cost$ - @LIMIT
  if sum$ > add$ then
    entries(KEYS[@LOG_KEY], gone$, gone$ + 31, function(instant, units)
      must = must - units
      t = instant + @PERIOD
      return must > 0
    end)
  end
  if must > 0 then t = now + @PERIOD end
end
--@WRITE
if sum$ == 0 then
  if dirty and raw then call('DEL', KEYS[@LOG_KEY]) end
elseif add$ > 0 then
  if sum$ == add$ then
    call('DEL', KEYS[@LOG_KEY])
    oldest$ = now
  elseif gone$ > 0 then
    call('LTRIM', KEYS[@LOG_KEY], gone$, -1)
  end
  newest$ = now
  if call('RPUSH', KEYS[@LOG_KEY], encode('<dd', now, min(add$, BIG))) > max(64, @LIMIT) and sum$ > @LIMIT then
    -- If there are more entries than the limit has units, some are a debt. No request can use the oldest unit, so it may leave
    -- with the next.
    local _, units = decode('<dd', call('LPOP', KEYS[@LOG_KEY]))
    local instant, next_units = decode('<dd', call('LINDEX', KEYS[@LOG_KEY], 0))
    call('LSET', KEYS[@LOG_KEY], 0, encode('<dd', instant, units + next_units))
  end
  call('PEXPIRE', KEYS[@LOG_KEY], ceil(@PERIOD / 1000) + 1)
elseif dirty and gone$ > 0 then
  call('LTRIM', KEYS[@LOG_KEY], gone$, -1)
end
sum$ = min(sum$, BIG)
--@REMAINING
max(0, @LIMIT - sum$)
--@RESET
sum$ > 0 and newest$ + @PERIOD or now
--@LIFE
if sum$ > 0 then life = max(life, newest$ + @PERIOD - now) end
--@USED
sum$
--@WORDS
sum$, oldest$, newest$
