-- A fixed window. ends$: when the window ends; 0 if none is open. used$: units in the window. carried$: if the present window
-- began with the debt of an earlier one, when that one ended.
--@DECLARE
local ends$, used$, carried$ = 0, 0, nil
--@LOAD
if now >= ends$ then
  local over = floor((now - ends$) / @PERIOD) + 1
  if used$ - @LIMIT * over > 0 then
    carried$ = ends$
    ends$, used$ = ends$ + over * @PERIOD, used$ - @LIMIT * over
  else
    ends$, used$ = @NEXT, 0
  end
end
--@SETTLE
local charged, actual = decode('<d', packed, at + @CHARGED), decode('<d', packed, at + @ACTUAL)
if actual > charged then
  if ends$ == 0 then ends$ = now + @PERIOD end
  used$, carried$ = min(BIG, used$ + actual - charged), nil
elseif refunds and actual < charged then
  local within = granted_at >= ends$ - @PERIOD and granted_at < ends$
  if within or carried$ and granted_at >= carried$ - @PERIOD and granted_at < carried$ then
    used$ = max(0, used$ - charged + actual)
    if used$ == 0 then ends$, carried$ = @NEXT, nil end
  end
end
--@ROOM
if cost$ > 0 then room = min(room, floor(max(0, @LIMIT - used$) / cost$)) end
--@CHARGE
if cost$ > 0 then
  if ends$ == 0 then ends$ = now + @PERIOD end
  used$, carried$ = min(BIG, used$ + room * cost$), nil
end
--@WHEN
local windows = floor((used$ + cost$ - 1) / @LIMIT)
t = windows > 0 and (ends$ > 0 and ends$ or now + @PERIOD) + (windows - 1) * @PERIOD or nil
--@REMAINING
max(0, @LIMIT - used$)
--@RESET
used$ == 0 and now or min(NEVER, ends$ + (ceil(used$ / @LIMIT) - 1) * @PERIOD)
--@LIFE
if used$ > 0 then life = max(life, ends$ + (ceil(used$ / @LIMIT) - 1) * @PERIOD - now) end
if carried$ then
  -- Keeps the earlier window as it was, so that a grant in it can still be refunded.
  used$, ends$ = used$ + @LIMIT * floor((ends$ - carried$) / @PERIOD), carried$
end
--@USED
used$
--@WORDS
ends$, used$
