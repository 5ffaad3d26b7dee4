-- lib/at: where a task is that is not at home.
-- record: due 13, lane 4, fence 8 hex, failures 2 hex, losses 2 hex, edits 2 hex
local function at_make(due, lane, fence, failures, losses, edits)
  return format('%013.0f%s%s%02x%02x%02x', due, lane, fence, failures, losses, edits)
end
local function at_read(r)
  return {
    due = tonumber(sub(r, 1, 13)), lane = sub(r, 14, 17), fence = sub(r, 18, 25),
    failures = tonumber(sub(r, 26, 27), 16), losses = tonumber(sub(r, 28, 29), 16), edits = tonumber(sub(r, 30, 31), 16),
  }
end
-- Due, lane, fence, failures and losses of a task, wherever it is; spec must be there.
local function at_of(id, spec)
  local r = call('HGET', P .. 'at', id)
  if r then return at_read(r), true end
  return { due = spec_due(id, spec), lane = spec_lane(spec), fence = '00000000', failures = 0, losses = 0, edits = 0 }, false
end
