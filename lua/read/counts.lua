-- read/counts: the bucket's counters, its lag figures of the last five minutes, its lock and its size.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""
-- gives   OK {stamp, counts (flat), lag (flat: bin, count, …, "max", lag; minute by minute), lock (flat), closed, first due, first timer,
--         lanes that stand aside (flat: lane, size), lanes in turn (flat: lane, size), entries of the agenda, tasks that failed and live}
-- bound   six minutes of lag; 64 entries of the agenda, 8 of them with sets; at most 64 parked lanes and 64 lanes a priority
-- events  none
-- memory  no-writes
local lag, minute = {}, floor(now / 60000)
for m = minute - 4, minute do
  for _, v in ipairs(call('HGETALL', P .. 'lag:' .. format('%.0f', m))) do lag[#lag + 1] = v end
end
local function sizes(lanes)
  local out = {}
  for _, lane in ipairs(lanes) do
    out[#out + 1] = lane
    out[#out + 1] = call('ZCARD', P .. 'ready:' .. lane)
  end
  return out
end
local waiting = {}
for p = 0, 5 do
  for _, lane in ipairs(call('ZRANGE', P .. 'ring:' .. p, 0, 63)) do waiting[#waiting + 1] = lane end
end
local first, timer = '', ''
local seen = 0
for _, name in ipairs(call('ZRANGE', P .. 'agenda', 0, 63)) do
  local kind = sub(name, 1, 1)
  if kind ~= 'k' then seen = seen + 1 end
  if seen > 8 then break end
  if kind == 't' then
    local head = call('ZRANGE', P .. 'timer:' .. sub(name, 2), 0, 0, 'WITHSCORES')
    if head[2] and (timer == '' or tonumber(head[2]) < tonumber(timer)) then timer = head[2] end
  elseif kind ~= 'k' then
    for _, set in ipairs(due_sets(name)) do
      local head = call('ZRANGE', P .. 'due:' .. set, 0, 0, 'WITHSCORES')
      if head[2] and (first == '' or tonumber(head[2]) < tonumber(first)) then first = head[2] end
    end
  end
end
local stands = call('SMEMBERS', P .. 'parked')
while #stands > 64 do table.remove(stands) end
return {
  'OK', stamp, call('HGETALL', P .. 'counts'), lag, call('HGETALL', P .. 'lock'),
  call('HGET', KEYS[1], 'closed') or '', first, timer, sizes(stands), sizes(waiting), call('ZCARD', P .. 'agenda'),
  call('HLEN', P .. 'tries'),
}
