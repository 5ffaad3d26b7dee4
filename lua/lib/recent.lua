-- lib/recent: finished tasks of the last minutes: id 16, outcome 1, fence 8, in one string for each 10 s.
local function recent_ten() return floor(lease_clock() / 10000) end
local function recent_name(ten) return 'recent:' .. format('%.0f', ten) end
local function need_recent()
  need('zset', 'recents')
  need('string', recent_name(recent_ten()))
end
local function remember(records)
  local name = recent_name(recent_ten())
  if call('APPEND', P .. name, records) == #records then call('ZADD', P .. 'recents', sub(name, 8), sub(name, 8)) end
end
-- Looks for the `n` ids in the table `want` (id -> true) in the strings of `back` times 10 s and of now, newest first;
-- those found leave the table. Answers id -> outcome and fence. Looks at `bytes` at most, a string more; nil: at all.
local function recall(want, n, back, bytes)
  local hits, since = {}, recent_ten() - (back < 90 and back or 90)
  need_recent()
  -- Some may lie ahead: the clock that they were written by has leapt back, and no claim has seen it before.
  for _, t in ipairs(call('ZRANGE', P .. 'recents', '+inf', since, 'BYSCORE', 'REV', 'LIMIT', 0, 100)) do
    if n == 0 or (bytes and bytes < 0) then break end
    local s = call('GET', P .. recent_name(t))
    if s and n > 30 then
      -- One walk costs as much as some thirty searches.
      if bytes then bytes = bytes - 30 * #s end
      for i = 1, #s, 25 do
        local id = sub(s, i, i + 15)
        -- The last one in a string stands: a task that was set back may have ended again.
        if want[id] then hits[id] = sub(s, i + 16, i + 24) end
      end
    elseif s then
      if bytes then bytes = bytes - n * #s end
      for id in pairs(want) do
        local at = string.find(s, id, 1, true)
        while at do
          if at % 25 == 1 then hits[id] = sub(s, at + 16, at + 24) end
          at = string.find(s, id, at + 1, true)
        end
      end
    end
    for id in pairs(want) do
      if hits[id] then
        want[id] = nil
        n = n - 1
      end
    end
  end
  return hits
end
