-- A sliding counter. present$, previous$: units of the present and of the previous window of the grid. weighs$: the present
-- weight of the previous units, rounded up.
--@HELPERS
-- floor(a * b / c) and whether it was rounded, for a below 2^32, b and c below 2^44: exact, by digits of 8 bits where the product
-- is not exact in a double.
local function divide(a, b, c)
  if a * b < 9007199254740992 then
    local quotient = floor(a * b / c)
    return quotient, quotient * c < a * b
  end
  local quotient, rest = 0, 0
  for shift = 3, 0, -1 do
    local part = rest * 256 + floor(a / 256 ^ shift) % 256 * b
    local whole = floor(part / c)
    quotient, rest = quotient * 256 + whole, part - whole * c
  end
  return quotient, rest > 0
end
local function divide_up(a, b, c)
  local quotient, rounded = divide(a, b, c)
  return rounded and quotient + 1 or quotient
end
--@DECLARE
local present$, previous$, to_go$, weighs$ = 0, 0, 0, 0
--@LOAD
local passed = floor(now / @PERIOD) - floor(last / @PERIOD)
if passed == 1 then
  present$, previous$ = 0, present$
elseif passed > 1 then
  present$, previous$ = 0, 0
end
to_go$ = @PERIOD - now % @PERIOD
weighs$ = divide_up(previous$, to_go$, @PERIOD)
--@SETTLE
local charged, actual = decode('<d', packed, at + @CHARGED), decode('<d', packed, at + @ACTUAL)
if actual > charged then
  present$ = min(4294967295, present$ + actual - charged)
elseif refunds and actual < charged then
  local starts = now + to_go$ - @PERIOD
  if granted_at >= starts then
    present$ = max(0, present$ - charged + actual)
  elseif granted_at >= starts - @PERIOD then
    previous$ = max(0, previous$ - charged + actual)
    weighs$ = divide_up(previous$, to_go$, @PERIOD)
  end
end
--@ROOM
if cost$ > 0 then room = min(room, floor(max(0, @LIMIT - present$ - weighs$) / cost$)) end
--@CHARGE
present$ = min(4294967295, present$ + room * cost$)
--@WHEN
t = nil
if present$ + weighs$ + cost$ > @LIMIT then
  local starts, left = now + to_go$ - @PERIOD, @LIMIT - present$ - cost$
  -- The longest part of the previous window that may still count: first with the present previous window, then with the present
  -- window as the previous one.
  if left >= 0 then
    local part = previous$ == 0 and huge or divide(left, @PERIOD, previous$)
    if part > 0 then t = max(now, starts + max(0, @PERIOD - part)) end
  end
  if not t then
    local part = present$ == 0 and huge or @LIMIT < cost$ and 0 or divide(@LIMIT - cost$, @PERIOD, present$)
    t = starts + (part > 0 and @PERIOD + max(0, @PERIOD - part) or 2 * @PERIOD)
  end
end
--@REMAINING
max(0, @LIMIT - present$ - weighs$)
--@RESET
present$ > 0 and now + to_go$ + @PERIOD or previous$ > 0 and now + to_go$ or now
--@LIFE
if present$ > 0 then
  life = max(life, to_go$ + @PERIOD)
elseif previous$ > 0 then
  life = max(life, to_go$)
end
--@USED
present$ + weighs$
--@WORDS
present$, previous$
