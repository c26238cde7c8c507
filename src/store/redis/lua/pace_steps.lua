-- What a pace whose units come at the end of each period does otherwise.
--@declare
local function steps$(instant) return floor(instant / @STEP) end
local function after$(steps) return steps > 0 and (floor(now / @STEP) + steps) * @STEP or now end
