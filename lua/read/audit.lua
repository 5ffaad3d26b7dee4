-- read/audit: walks through pieces of a bucket's keys and judges each task it meets.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 most tasks  3 most bytes of specs  4 cursor within the first key  5… names behind the tag
-- gives   OK {stamp, keys finished, cursor in the next, tasks met, n × (kind, id, key, detail, member)}
-- bound   goes on until the tasks or the bytes are used up; a piece more where a small key answers whole
-- events  none
-- memory  no-writes
local tasks, bytes, cursor, met, done = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], 0, 0
-- Met in another key than that of its spec: what the walk through the specs will see is left to it.
local function glance(id, place, member)
  broken = false
  local there = look('HEXISTS', P .. 'task:' .. shelf(id), id)
  if broken then return end
  local right = there == 1
  if right and place then
    local raw = look('HGET', P .. 'at', id)
    local minute = string.match(place, '^due:(%d+)')
    if raw and at_ok(raw) then
      local at = at_read(raw)
      right = at.lane == (minute and sub(member, 17, 20) or sub(place, 7))
        and (not minute or format('%.0f', floor(at.due / 60000)) == minute)
    elseif not raw then
      right = not minute or home(id) == minute
    end
  end
  if not right then judge(id, place, member) end
end
local function walk(name)
  local kind, key = string.match(name, '^%a+'), P .. name
  local count = tasks < 300 and tasks or 300
  if kind == 'task' then
    local largest = tonumber(look('HGET', KEYS[1], 'maxspec') or 0)
    if largest * count > bytes then count = floor(bytes / largest) end
  end
  if count < 1 then count = 1 end
  broken = false
  local zset = kind == 'due' or kind == 'ready' or kind == 'held' or kind == 'kept' or kind == 'timer' or name == 'dead'
  local piece = look(zset and 'ZSCAN' or 'HSCAN', key, cursor, 'COUNT', count)
  if broken then return '0' end
  local list = piece[2]
  for i = 1, #list, 2 do
    local field, v = list[i], list[i + 1]
    met = met + 1
    tasks = tasks - 1
    if kind == 'keys' then
      local id = #v >= 14 and key_values().id(v) or ''
      if not id_ok(id) or not (#v == 14 or #v == 20) or #field > 14 then
        say('record_unreadable', '', name, 'the state of an idempotency key has the wrong form')
      elseif #v == 14 then
        broken = false
        local spec = look('HGET', P .. 'task:' .. shelf(id), id)
        local own = spec and spec_ok(spec) and spec_options(spec).name
        if spec then bytes = bytes - #spec end
        if not broken and not spec then say('orphan_key', id, name, 'names a task that does not exist', field)
        elseif not broken and spec_ok(spec) and own ~= field then say('orphan_key', id, name, 'names a task with another key', field) end
      end
    else
      local with_lane = kind == 'due' or kind == 'held'
      local id = with_lane and sub(field, 1, 16) or field
      if kind == 'kept' then id = sub(field, 33, 48) end
      if not id_ok(id) or (with_lane and not lane_ok(sub(field, 17))) or (kind == 'kept' and not lane_ok(sub(field, 49))) then
        say('record_unreadable', '', name, 'a member that is no task id' .. (with_lane and ' and lane' or ''))
      elseif kind == 'task' then
        bytes = bytes - #v
        judge(id, nil, nil, v)
      elseif kind == 'timer' then
        broken = false
        if look('HEXISTS', P .. 'task:' .. shelf(id), id) == 0 and not broken then say('timer_without_task', id, name, 'the task has ended', id) end
      elseif kind == 'due' or kind == 'ready' then
        glance(id, name, field)
      elseif kind == 'held' or kind == 'kept' then
        judge(id, name, field)
      else
        glance(id)
      end
    end
  end
  return piece[1]
end
local i = 5
while i <= #ARGV and tasks > 0 and bytes > 0 do
  cursor = walk(ARGV[i])
  if cursor == '0' then i, done = i + 1, done + 1 end
end
local out = { 'OK', stamp, done, cursor, met }
for _, v in ipairs(found) do out[#out + 1] = v end
return out
