-- A throttle or a token bucket. taken$: parts that are not refilled yet. A unit has PARTS parts, and each step refills REFILL
-- parts. A step is a microsecond, or a period if the units of each period come at once.
--@DECLARE
@DECLARE_STEPS
local taken$ = @INITIAL
--@LOAD
local back = (@STEPS(now) - @STEPS(last)) * @REFILL
taken$ = back < taken$ and taken$ - back or 0
-- A bucket that is empty at first must be kept from its first call on. Otherwise it would stay empty until its first grant.
dirty = dirty or @INITIAL > 0 and not raw
--@SETTLE
local charged, actual = decode('<d', packed, at + @CHARGED), decode('<d', packed, at + @ACTUAL)
if actual > charged then
  taken$ = min(BIG, taken$ + (actual - charged) * @PARTS)
elseif refunds and actual < charged then
  -- The part of this cost that cannot have been refilled since the grant is certainly still taken.
  charged, actual = min(charged, @CAPACITY), min(actual, @CAPACITY)
  local left = charged * @PARTS - (@STEPS(now) - @STEPS(granted_at)) * @REFILL
  taken$ = max(0, taken$ - max(0, min((charged - actual) * @PARTS, left)))
end
--@ROOM
if cost$ > 0 then
  local most = floor((@FULL - taken$) / @PARTS)
  if cost$ > 1 then most = floor(most / cost$) end
  if most < room then room = most > 0 and most or 0 end
end
--@CHARGE
taken$ = taken$ + room * cost$ * @PARTS
--@WHEN
local excess = taken$ + cost$ * @PARTS - @FULL
t = excess > 0 and @AFTER(ceil(excess / @REFILL)) or nil
--@REMAINING
taken$ < @FULL and floor((@FULL - taken$) / @PARTS) or 0
--@RESET
@AFTER(ceil(taken$ / @REFILL))
--@LIFE
local forgettable = @AFTER(ceil((taken$ + @INITIAL) / @REFILL)) - now
if forgettable > life then life = forgettable end
--@WORDS
taken$
--@USED
ceil(taken$ / @PARTS)
--@STEP_FUNCTIONS
local function steps$(instant) return floor(instant / @STEP) end
local function after$(steps) return steps > 0 and (floor(now / @STEP) + steps) * @STEP or now end
