-- A concurrency. odd$: by how much its leases hold more or fewer places than one each.
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
