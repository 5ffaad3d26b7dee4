-- lib/unplace: takes a pending task out of its place, wherever that is.
-- The plan of a task, if it has one.
local function plan_of(spec) return spec and byte(spec, 2) % 8 >= 4 and spec_options(spec).plan or nil end
-- What taking a task out of its place would look at and write.
local function need_place(id, due, lane, spec)
  local plan = plan_of(spec)
  if plan then need_all('zset', 'helds', 'held:' .. plan) end
  if placed(spec) then turns().need() end
  local base = due_base(format('%.0f', floor(due / 60000)), lane)
  local second = due_second(base, due)
  need_all('zset', 'due:' .. base, 'due:' .. second, 'due:' .. due_fine(second, id), 'ready:' .. lane, 'ring:' .. level(lane))
end
-- Takes a pending task out of its place; answers where it was, or nothing.
local function unplace(id, due, lane, spec)
  local base = due_base(format('%.0f', floor(due / 60000)), lane)
  local second = due_second(base, due)
  for _, name in ipairs({ base, second, due_fine(second, id) }) do
    local key = P .. 'due:' .. name
    if call('ZREM', key, id .. lane) == 1 then
      if call('EXISTS', key) == 0 then unlist(name) end
      return 'due:' .. name
    end
  end
  local key = P .. 'ready:' .. lane
  if call('ZREM', key, id) == 1 then
    call('HINCRBY', P .. 'counts', 'ready', -1)
    if call('EXISTS', key) == 0 then
      call('ZREM', P .. 'ring:' .. level(lane), lane)
      call('SREM', P .. 'parked', lane)
    end
    return 'ready:' .. lane
  end
  local plan = plan_of(spec)
  if plan and call('ZREM', P .. 'held:' .. plan, id .. lane) == 1 then
    call('HINCRBY', P .. 'counts', 'held', -1)
    if call('EXISTS', P .. 'held:' .. plan) == 0 then call('ZREM', P .. 'helds', plan) end
    return 'held:' .. plan
  end
  if placed(spec) and turns().unkeep(id, due, lane, spec) then return 'kept' end
end
