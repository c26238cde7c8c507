-- A throttle or a token bucket. taken$: parts that are not refilled yet. A unit has PARTS of them, and a step brings REFILL. A step is
-- a microsecond, or, where the units of each period come at once, a period.
--@declare
local taken$ = @INITIAL
--@load
taken$ = max(0, taken$ - (@STEPS(now) - @STEPS(last)) * @REFILL)
@FRESH
--@settle
local charged, actual = tonumber(ARGV[at + @CHARGED]), tonumber(ARGV[at + @ACTUAL])
if actual > charged then
  taken$ = min(BIG, taken$ + (actual - charged) * @PARTS)
elseif refunds and actual < charged then
  -- What the time since the grant cannot have refilled of this cost alone is certainly still taken.
  charged, actual = min(charged, @CAPACITY), min(actual, @CAPACITY)
  local left = charged * @PARTS - (@STEPS(now) - @STEPS(granted_at)) * @REFILL
  taken$ = max(0, taken$ - max(0, min((charged - actual) * @PARTS, left)))
end
--@room
if cost$ > 0 then room = min(room, floor(max(0, floor((@FULL - taken$) / @PARTS)) / cost$)) end
--@charge
taken$ = min(BIG, taken$ + room * cost$ * @PARTS)
--@when
local excess = taken$ + cost$ * @PARTS - @FULL
t = excess > 0 and @AFTER(ceil(excess / @REFILL)) or nil
--@remaining
max(0, floor((@FULL - taken$) / @PARTS))
--@reset
@AFTER(ceil(taken$ / @REFILL))
--@life
life = max(life, @AFTER(ceil((taken$ + @INITIAL) / @REFILL)) - now)
--@words
taken$
