-- read/verify: judges single tasks again, before they are called damaged.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 most bytes to read  3… id, place behind the tag or "", member there, "1" if its lease is in question
-- gives   OK {stamp, tasks judged, n × (kind, id, key, detail, member)}
-- bound   ids <= 500; stops once the bytes are used up, after at least one
-- events  none
-- memory  no-writes
local bytes, done = tonumber(ARGV[2]), 0
for i = 3, #ARGV, 4 do
  local id = ARGV[i]
  if bytes <= 0 then break end
  broken = false
  bytes = bytes - (look('HSTRLEN', P .. 'task:' .. shelf(id), id) or 0)
  local lease = ARGV[i + 3] == '1'
  if lease then
    local r = look('HGET', P .. 'run', id)
    if r and run_ok(r) then bytes = bytes - (look('STRLEN', lease_key(run_deadline(r))) or 0) end
  end
  local place = ARGV[i + 1] ~= '' and ARGV[i + 1] or nil
  local kind = place and string.match(place, '^%a+')
  local stands = kind == 'due' or kind == 'ready' or kind == 'held' or kind == 'kept'
  judge(id, stands and place or nil, ARGV[i + 2], nil, lease)
  broken = false
  if kind == 'timer' and look('ZSCORE', P .. place, id) and look('HEXISTS', P .. 'task:' .. shelf(id), id) == 0 then
    say('timer_without_task', id, place, 'the task has ended', id)
  elseif kind == 'keys' then
    local v = look('HGET', P .. place, ARGV[i + 2])
    local spec = look('HGET', P .. 'task:' .. shelf(id), id)
    if #id == 16 and v == key_values().of(id) and not broken then
      if not spec then say('orphan_key', id, place, 'names a task that does not exist', ARGV[i + 2])
      elseif spec_ok(spec) and spec_options(spec).name ~= ARGV[i + 2] then say('orphan_key', id, place, 'names a task with another key', ARGV[i + 2]) end
    end
  end
  done = done + 1
end
local out = { 'OK', stamp, done }
for _, v in ipairs(found) do out[#out + 1] = v end
return out
