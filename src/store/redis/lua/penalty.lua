-- A penalty. at$: in the future, the end of the ban. Otherwise the latest step of the counter, or the instant since which the
-- counter is not zero, or 0. value$: the counter. bans$: bans that are not forgiven.
--@HELPERS
-- The number of steps in which a value falls to a target or below.
local function halvings(_, value, target)
  for steps = 0, 31 do
    if floor(value / 2 ^ steps) <= target then return steps end
  end
  return 32
end
local function subtractions(units, value, target) return ceil(max(0, value - target) / units) end
local function halved(_, value, steps) return floor(value / 2 ^ steps) end
local function lowered(units, value, steps) return value - steps * units end
--@DECLARE
local at$, value$, bans$ = 0, 0, 0
--@LOAD
if at$ <= now then
  local resting = true
  if value$ > 0 then
    local passed, to_zero = floor((now - at$) / @PERIOD), @TO(@UNITS, value$, 0)
    if passed < to_zero then
      value$, at$, resting = @FALL(@UNITS, value$, passed), at$ + passed * @PERIOD, false
    else
      value$, at$ = 0, at$ + to_zero * @PERIOD
    end
  end
  if resting and not (bans$ > 0 and now - at$ < @FORGIVE) then at$, bans$ = 0, 0 end
end
--@SETTLE
local charged, actual = decode('<d', packed, at + @CHARGED), decode('<d', packed, at + @ACTUAL)
if actual > charged then
  if at$ <= now then
    if value$ == 0 then at$ = now end
    value$ = min(@CEILING, value$ + actual - charged)
  end
elseif refunds and actual < charged and at$ <= granted_at then
  local before = value$
  value$ = max(0, value$ - charged + actual)
  if value$ == 0 and before > 0 then
    at$ = now
    if not (bans$ > 0 and @FORGIVE > 0) then at$, bans$ = 0, 0 end
  end
end
--@ROOM
if cost$ > 0 then room = at$ > now and 0 or min(room, floor(max(0, @THRESHOLD - value$) / cost$)) end
--@CHARGE
if cost$ > 0 then
  if value$ == 0 then at$ = now end
  value$ = min(@CEILING, value$ + room * cost$)
end
--@DENY
if cost$ > 0 and at$ <= now and cost$ > max(0, @THRESHOLD - value$) then
  if @BANS then
    at$, value$, bans$, dirty = now + min(@LONGEST, @FIRST * 2 ^ bans$), 0, min(65535, bans$ + 1), true
  elseif @RAISES then
    if value$ == 0 then at$ = now end
    local raised = min(@CEILING, value$ + attempts * cost$)
    dirty = dirty or raised ~= value$
    value$ = raised
  end
end
--@WHEN
t = nil
if at$ > now then
  t = at$
elseif cost$ > max(0, @THRESHOLD - value$) then
  t = max(now, at$ + @TO(@UNITS, value$, max(0, @THRESHOLD - cost$)) * @PERIOD)
end
--@REMAINING
at$ > now and 0 or max(0, @THRESHOLD - value$)
--@RESET
(at$ == 0 and value$ == 0 and bans$ == 0) and now
  or min(NEVER, max(now, at$ + @TO(@UNITS, value$, 0) * @PERIOD + (bans$ > 0 and @FORGIVE or 0)))
--@LIFE
life = max(life, at$ + @TO(@UNITS, value$, 0) * @PERIOD + (bans$ > 0 and @FORGIVE or 0) - now)
--@USED
at$ > now and max(value$, @THRESHOLD) or value$
--@WORDS
at$, value$, bans$
