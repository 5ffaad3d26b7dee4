-- lib/size: bytes of the specs here, counted only where the namespace has a quota for them (`sized` of meta).
-- hash `bytes`: home hour -> bytes of its specs, '#' -> of all hours. What was there before is counted when its hour is first
-- met, unless that has more tasks than a script may look at: then it begins with 0, and is exact once it has been empty.
-- Answers nothing where nothing is counted; else what counts, which is made when it is asked for.
local function sized()
  if sized_flag == nil then sized_flag = call('HGET', KEYS[1], 'sized') end
  if not sized_flag or type(sized_flag) == 'table' then return sized_flag end
  local HOUR_MOST = 1000
  local s, key, left = {}, P .. 'bytes', 2 * HOUR_MOST
  need('hash', 'bytes')
  -- Bytes of an hour change by `more`; said before they do.
  s.change = function(m, more)
    local known, first = tonumber(call('HGET', key, m) or nil), 0
    if not known then
      local task = P .. 'task:' .. m
      local n = call('HLEN', task)
      if n <= HOUR_MOST and n <= left then
        left = left - n
        for _, id in ipairs(n > 0 and call('HKEYS', task) or {}) do first = first + call('HSTRLEN', task, id) end
      end
      known = first
    end
    if known + more < 0 then more = 0 - known end
    call('HINCRBY', key, m, first + more)
    call('HINCRBY', key, '#', first + more)
  end
  -- Takes specs out of their hour.
  s.drop = function(m, ids)
    local task, gone = P .. 'task:' .. m, 0
    for _, id in ipairs(ids) do gone = gone + call('HSTRLEN', task, id) end
    s.change(m, 0 - gone)
    call('HDEL', task, unpack(ids))
    if call('EXISTS', task) == 0 then
      local rest = tonumber(call('HGET', key, m) or 0)
      call('HDEL', key, m)
      -- Not -rest: a zero would be sent as -0.
      if call('HINCRBY', key, '#', 0 - rest) <= 0 then call('HDEL', key, '#') end
    end
  end
  sized_flag = s
  return s
end
-- Takes specs out of their hour, whether that is counted or not.
local function specs_drop(m, ids)
  local s = sized()
  if s then s.drop(m, ids) else call('HDEL', P .. 'task:' .. m, unpack(ids)) end
end
