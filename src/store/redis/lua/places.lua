-- A concurrency. odd$: by how much its leases hold more or fewer places than one each.
--@declare
local odd$ = 0
--@room
if cost$ > 0 then room = min(room, floor(max(0, @LIMIT - held - odd$) / cost$)) end
--@charge
if @ANY_PLACE then odd$ = odd$ + room * (cost$ - 1) end
--@when
t = held + odd$ + cost$ > @LIMIT and RELEASE or nil
--@remaining
max(0, @LIMIT - held - odd$)
--@reset
now
--@words
odd$
