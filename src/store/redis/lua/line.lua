-- The line: whose turn it is among the replicas that wait. It has the rules and the names of src/core/ledger/turns.rs. The function is
-- part of both branches that call it, because a call without a line would take half a microsecond longer if it made the function.
--
-- packed a double: the last instant that was named to a replica without a ticket; then the tickets, each: the holder (eight bytes), and
--        doubles: the asks that wait, units granted, places held, when it asked, when it is due (0: after a release), when its turn
--        began, and the costs of the first ask for each limit
local function open_line(text, from)
  local me, polls = packed:sub(33, 40), decode('<d', packed, 41)
  local patience, slice = 20000, 10000
  if polls > 0 then patience, slice = polls * 2, polls * 5 end
  local tail, tickets, rank, most, no_ticket = 0, {}, nil, huge, false
  if #text >= from then tail = decode('<d', text, from) end
  for at = from + 8, #text, @TICKET do
    local holder, wanted, granted, held, asked, due, began = decode('<c8dddddd', text, at)
    -- All fields at once: the table would grow three times otherwise.
    tickets[#tickets + 1] = {
      holder = holder, wanted = wanted, granted = granted, held = held, asked = asked, due = due, began = began,
      costs = {decode('@TICKET_COSTS', text, at + 56)},
    }
  end
  local function number_of(holder)
    for i = 1, #tickets do
      if tickets[i].holder == holder then return i end
    end
  end
  -- What an ask of these costs moves its replica back: places, units.
  local function step(costs)
    local places, units = 0, 1
    --@for LIMITS
    units = max(units, costs[$])
    --@end
    --@for PLACES
    places = places + costs[$]
    --@end
    return places, units
  end
  local function asks_before(ticket, came, rank)
    local places, units = step(ticket.costs)
    local gap, fewer, as_many = rank.held - ticket.held, 0, 0
    if gap > 0 then
      if places == 0 then return huge end
      fewer = ceil(gap / places)
    end
    if ticket.held + fewer * places ~= rank.held or rank.keeps then return fewer end
    gap = rank.granted - ticket.granted - fewer * units
    if gap > 0 then as_many = ceil(gap / units) end
    if gap >= 0 and gap % units == 0 and came < rank.came then as_many = as_many + 1 end
    if places > 0 then as_many = min(as_many, 1) end
    return fewer + as_many
  end
  local function set_aside(holder, rank, for_keen)
    local sums = {@ZEROS}
    for came = 1, #tickets do
      local ticket = tickets[came]
      local wanted = ticket.wanted
      if for_keen and step(ticket.costs) == 0
        and (now - ticket.asked < 2000 or wanted > 0 and ticket.due > 0 and ticket.due <= now and now - ticket.due < 2000)
      then
        wanted = BIG
      end
      if wanted > 0 and ticket.holder ~= holder then
        local asks = min(asks_before(ticket, came, rank), wanted)
        for i = 1, @COUNT do sums[i] = sums[i] + asks * ticket.costs[i] end
        if ticket.due > now then
          --@for PLACES
          sums[$] = sums[$] - asks * ticket.costs[$]
          --@end
        end
      end
    end
    return sums
  end
  local function after(rank, asks, costs)
    local places, units = step(costs)
    return {held = rank.held + asks * places, keeps = rank.keeps, granted = rank.granted + asks * units, came = rank.came}
  end
  local function fewest()
    local fewest
    for i = 1, #tickets do fewest = min(fewest or huge, tickets[i].granted) end
    return fewest or 0
  end
  -- The places of the caller, without those of this call.
  local function count_held()
    local sum = 0
    if @HAS_PLACES then
      local ids = call('ZRANGE', KEYS[2], 0, -1)
      for i = 1, #ids do
        if ids[i]:sub(1, 8) == me then
          sum = sum + @PLACE_COUNT
          local costs = unequal > 0 and call('HGET', KEYS[3], ids[i])
          if costs then
            local own = {decode('@PLACE_DOUBLES', costs)}
            for place = 1, @PLACE_COUNT do sum = sum + own[place] end
          end
        end
      end
    end
    return sum
  end
  local function take_back(id, places)
    local ticket = tickets[number_of(id:sub(1, 8))]
    if ticket then ticket.held = ticket.held - places end
  end
  local function begin(returns)
    local ended = 0
    for i = 1, #tickets do
      local ticket = tickets[i]
      if now - max(ticket.asked, ticket.due) < 2500000 then
        ticket.held = held > 0 and max(0, ticket.held) or 0
        if ticket.holder ~= me and ticket.due > 0 and now - ticket.due > patience then ticket.wanted = 0 end
        tickets[i - ended] = ticket
      else
        ended = ended + 1
      end
    end
    for _ = 1, ended do tickets[#tickets] = nil end
    if #tickets == 0 and now >= tail then return end
    local at = number_of(me)
    local own = tickets[at]
    rank = {
      held = own and own.held or count_held(), granted = own and own.granted or fewest(), came = at or #tickets + 1,
      keeps = returns and own and now - own.began < slice,
    }
    no_ticket = not own and now < tail
  end
  -- The time in which the units of an ask come.
  local function pause_of(costs)
    local pause = 0
    --@for LIMITS
    pause = max(pause, ceil(@ROUND * costs[$] / @CAPACITY))
    --@end
    return pause
  end
  local function bound(costs)
    if no_ticket then
      local pause = pause_of(costs)
      most = pause > 0 and max(1, floor(1000 / pause)) or 1000000
    end
  end
  local function room(count, left, costs)
    if not rank then return count end
    local fitting, beyond = 0, min(count, most) + 1
    while beyond - fitting > 1 do
      local middle = fitting + floor((beyond - fitting) / 2)
      local before, fits = set_aside(me, after(rank, middle - 1, costs), true), true
      for i = 1, @COUNT do
        if costs[i] > 0 and before[i] + middle * costs[i] > left[i] then fits = false end
      end
      if fits then fitting = middle else beyond = middle end
    end
    return fitting
  end
  local function advance(asks, costs)
    if rank then rank, most = after(rank, asks, costs), most - asks end
  end
  local function before() return rank and set_aside(me, rank) end
  local function finish(wanted, costs, due, taken)
    local at, crowded = number_of(me), now < tail
    local own = tickets[at]
    if wanted == 0 then due = 0 end
    local known = own and (not crowded or taken == 0)
    if own and not known then table.remove(tickets, at) end
    local full = #tickets >= 64
    if not known and wanted == 0 and (crowded or full or #tickets == 0) then return end
    local held_now = rank and rank.held
    if not held_now then
      held_now = count_held()
      for i = 2, @HAS_PLACES and #opened or 0, 2 do held_now = held_now + @PLACE_COUNT end
      for i = 2, @HAS_PLACES and #odd_costs or 0, 2 do
        local own = {decode('@PLACE_DOUBLES', odd_costs[i])}
        for place = 1, @PLACE_COUNT do held_now = held_now + own[place] end
      end
    end
    own = own or {holder = me, wanted = 0, granted = fewest(), held = 0, asked = 0, due = 0, began = 0, costs = {}}
    if taken > 0 and now - own.began >= slice then own.began = now end
    own.granted, own.held, own.wanted, own.due, own.asked = own.granted + taken, held_now, wanted, due, now
    own.costs = costs or own.costs
    for i = 1, @COUNT do own.costs[i] = own.costs[i] or 0 end
    if known then return end
    if due > 0 and (crowded or full) then
      tail = max(tail, due) + max(1000, pause_of(costs))
      return tail
    end
    if full then
      local at = 1
      for i = 2, #tickets do
        if tickets[i].granted >= tickets[at].granted then at = i end
      end
      table.remove(tickets, at)
    end
    tickets[#tickets + 1] = own
  end
  local function comes_after(one, came, other, came_other)
    if one.held ~= other.held then return one.held > other.held end
    if one.granted ~= other.granted then return one.granted > other.granted end
    return came > came_other
  end
  local function offer(left)
    local offered, last, came_last = {}, nil, nil
    while true do
      local next, came
      for i = 1, #tickets do
        local it = tickets[i]
        if it.wanted > 0
          and (not last or comes_after(it, i, last, came_last))
          and (not next or comes_after(next, came, it, i))
        then
          next, came = it, i
        end
      end
      if not next then break end
      local before = set_aside(next.holder, {held = next.held, granted = next.granted, came = came})
      --@for PLACES
      if next.costs[$] > 0 and before[$] + next.costs[$] > left[$] then return offered, next.holder end
      --@end
      if next.due == 0 and next.holder ~= me then
        next.due = now
        offered[#offered + 1] = next.holder
      end
      last, came_last = next, came
    end
    return offered, ('\0'):rep(8)
  end
  local function life()
    local life = tail - now
    for i = 1, #tickets do
      life = max(life, max(tickets[i].asked, tickets[i].due) + 2500000 - now)
    end
    return life
  end
  local function pack()
    if #tickets == 0 and tail <= now then return '' end
    local packed = {encode('<d', tail)}
    for i = 1, #tickets do
      local it = tickets[i]
      packed[#packed + 1] =
        encode('@TICKET_FORMAT', it.holder, it.wanted, it.granted, it.held, it.asked, it.due, it.began, unpack(it.costs, 1, @COUNT))
    end
    return table.concat(packed)
  end
  return {
    take_back = take_back, begin = begin, bound = bound, room = room, advance = advance, before = before, finish = finish,
    offer = offer, life = life, pack = pack,
  }
end
