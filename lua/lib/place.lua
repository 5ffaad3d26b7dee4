-- lib/place: puts a pending task into a due set or lane.
local SPLIT = 10000
local function due_base(minute, lane) return minute .. (level(lane) < 2 and 'u' or '') end
local function due_second(base, due) return base .. format('.%02d', floor(due / 1000) % 60) end
local function due_fine(second, id) return second .. format('.%x', digit(sub(id, 16, 16)) % 16) end
-- The set a task belongs into now: the minute's, once that is full the second's, then one of 16.
local function due_name(id, due, lane)
  local name = due_base(format('%.0f', floor(due / 60000)), lane)
  if call('ZCARD', P .. 'due:' .. name) < SPLIT then return name end
  name = due_second(name, due)
  if call('ZCARD', P .. 'due:' .. name) < SPLIT then return name end
  return due_fine(name, id)
end
-- What putting a task into a due set would write.
local function need_due(id, due, lane)
  local base = due_base(format('%.0f', floor(due / 60000)), lane)
  -- What this call itself adds may fill a set: the next ones are looked at a batch early.
  if need('zset', 'due:' .. base) < SPLIT - 1000 then return end
  local second = due_second(base, due)
  if need('zset', 'due:' .. second) >= SPLIT - 1000 then need('zset', 'due:' .. due_fine(second, id)) end
end
-- Takes a set that is gone off the agenda, unless its name still stands for another.
local function unlist(name)
  local both = listed(name)
  if call('EXISTS', P .. 'due:' .. both, P .. 'due:' .. both .. 'u') == 0 then call('ZREM', P .. 'agenda', both) end
end
local function due_put(id, due, lane)
  local name = due_name(id, due, lane)
  call('ZADD', P .. 'due:' .. name, due, id .. lane)
  call('ZADD', P .. 'agenda', floor(due / 60000), listed(name))
end
local function lane_put(id, due, lane)
  local key = P .. 'ready:' .. lane
  if call('ZCARD', key) == 0 then call('ZADD', P .. 'ring:' .. level(lane), 'NX', 0, lane) end
  if call('ZADD', key, due, id) == 1 then call('HINCRBY', P .. 'counts', 'ready', 1) end
end
