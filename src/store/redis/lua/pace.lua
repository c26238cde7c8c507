-- A throttle or a token bucket. taken$: parts that are not refilled yet. A unit has PARTS of them, and a step brings REFILL. A step is
-- a microsecond, or, where the units of each period come at once, a period.
--@declare
local taken$ = @INITIAL
--@load
local back = (@STEPS(now) - @STEPS(last)) * @REFILL
taken$ = back < taken$ and taken$ - back or 0
@FRESH
--@settle
local charged, actual = decode('<d', packed, at + @CHARGED), decode('<d', packed, at + @ACTUAL)
if actual > charged then
  taken$ = min(BIG, taken$ + (actual - charged) * @PARTS)
elseif refunds and actual < charged then
  -- What the time since the grant cannot have refilled of this cost alone is certainly still taken.
  charged, actual = min(charged, @CAPACITY), min(actual, @CAPACITY)
  local left = charged * @PARTS - (@STEPS(now) - @STEPS(granted_at)) * @REFILL
  taken$ = max(0, taken$ - max(0, min((charged - actual) * @PARTS, left)))
end
--@room
if cost$ > 0 then
  local most = floor((@FULL - taken$) / @PARTS)
  if cost$ > 1 then most = floor(most / cost$) end
  if most < room then room = most > 0 and most or 0 end
end
--@charge
taken$ = taken$ + room * cost$ * @PARTS
--@when
local excess = taken$ + cost$ * @PARTS - @FULL
t = excess > 0 and @AFTER(ceil(excess / @REFILL)) or nil
--@remaining
taken$ < @FULL and floor((@FULL - taken$) / @PARTS) or 0
--@reset
@AFTER(ceil(taken$ / @REFILL))
--@life
local forgettable = @AFTER(ceil((taken$ + @INITIAL) / @REFILL)) - now
if forgettable > life then life = forgettable end
--@words
taken$
