-- A concurrency. odd$: how many more places its leases hold than one each; negative for fewer.
--@DECLARE
local odd$ = 0
--@ROOM
if cost$ > 0 then room = min(room, floor(max(0, @LIMIT - held - odd$) / cost$)) end
--@CHARGE
if 0@PLACE_COSTS > 0 then odd$ = odd$ + room * (cost$ - 1) end
--@WHEN
t = held + odd$ + cost$ > @LIMIT and RELEASE or nil
--@REMAINING
max(0, @LIMIT - held - odd$)
--@RESET
now
--@WORDS
odd$
