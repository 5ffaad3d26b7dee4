-- intake/collapse: rows of one bucket become pending tasks, where a placement key has no more than one that waits.
-- moves   (new) -> pending; pending -> cancelled
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 who  3 ms since the first sending, "" if this is it
--         4… rows: id, due, due within its home minute 3 + R (it replaces what is pending) or K (that is kept), most of its
--         queue's tasks here that have not ended or "", spec
-- gives   OK {stamp, a letter a row: C created, D another stands, U its fate is unknown, O over the backlog; the id of each D}
-- bound   rows <= single_max_rows
-- events  submitted, cancelled
-- memory  refused when full
local who, age, n = ARGV[2], tonumber(ARGV[3]), (#ARGV - 3) / 5
need('stream', 'events')
need_all('hash', 'counts', 'run', 'at', 'tries', 'tally', 'lock')
need_all('zset', 'agenda', 'dead')
need('set', 'parked')
turns().need()
sized()
local rows, past, unknown = {}, {}, 0
-- A task that is pending and was never handed out.
local function untouched(id)
  local spec = id and call('HGET', P .. 'task:' .. shelf(id), id)
  if not spec or call('HEXISTS', P .. 'run', id) == 1 or call('ZSCORE', P .. 'dead', id) then return end
  local at = at_of(id, spec)
  if at.fence == '00000000' then return spec, at end
end
for i = 1, n do
  local a = 5 * i - 1
  local row = { id = ARGV[a], due = tonumber(ARGV[a + 1]), offset = sub(ARGV[a + 2], 1, 3), keeps = sub(ARGV[a + 2], 4) == 'K', most = tonumber(ARGV[a + 3]), spec = ARGV[a + 4] }
  rows[i] = row
  row.lane, row.o, row.name = spec_lane(row.spec), spec_options(row.spec), turns().name(row.spec)
  need_due(row.id, row.due, row.lane)
  need_place(row.id, row.due, row.lane, row.spec)
  need_end(row.id, row.spec)
  local old = call('HGET', P .. 'newest', row.name)
  local spec, at = untouched(old)
  if spec then
    need_place(old, at.due, at.lane, spec)
    need_end(old, spec)
  end
  if age and call('HEXISTS', P .. 'task:' .. shelf(row.id), row.id) == 0 then
    past[row.id] = true
    unknown = unknown + 1
  end
end
local hits = unknown > 0 and recall(past, unknown, 90) or {}
local letters, others, records, rares, largest, first = {}, {}, {}, {}, 0, nil
local function make(row)
  local id, spec, o = row.id, row.spec, row.o
  if hits[id] or call('HEXISTS', P .. 'task:' .. shelf(id), id) == 1 then return 'C' end
  if age and age > 120000 and age > (o.window or 0) then return 'U' end
  local v = o.key and call('HGET', P .. 'keys:' .. o.shard, o.name)
  if v then
    local other, till = key_values().id(v), key_values().till(v)
    if till and till > now or not till and call('HEXISTS', P .. 'task:' .. shelf(other), other) == 1 then return 'D', other end
  end
  local old = call('HGET', P .. 'newest', row.name)
  local old_spec, at = untouched(old)
  if old_spec and row.keeps then return 'D', old end
  if row.most then
    local held = tonumber(call('HGET', P .. 'tally', sub(row.lane, 1, 3) .. 'b') or 0)
    if held - (old_spec and spec_bound(old_spec) and 1 or 0) >= row.most then return 'O' end
  end
  if old_spec then
    unplace(old, at.due, at.lane, old_spec)
    finish(old, old_spec, 'C', at.fence, 'replaced by ' .. id)
    rares[#rares + 1] = rare(old, NO_GRANT, 'C', 0, 'replaced by ' .. id)
  end
  if sized() then sized().change(shelf(id), #spec) end
  call('HSET', P .. 'task:' .. shelf(id), id, spec)
  due_put(id, row.due, row.lane)
  if o.key then
    roomy(P .. 'keys:' .. o.shard, o.name, 1)
    call('HSET', P .. 'keys:' .. o.shard, o.name, key_values().of(id))
  end
  if o.deadline then
    local minute = format('%.0f', floor(o.deadline / 60000))
    call('ZADD', P .. 'timer:' .. minute, o.deadline, id)
    call('ZADD', P .. 'agenda', minute, 't' .. minute)
  end
  roomy(P .. 'newest', row.name, 1)
  call('HSET', P .. 'newest', row.name, id)
  needed.newest = 1
  tally_bound(spec, 1)
  records[#records + 1] = id .. row.lane .. row.offset
  if #spec > largest then largest = #spec end
  if not first or row.due < first then first = row.due end
  return 'C'
end
for i, row in ipairs(rows) do letters[i], others[#others + 1] = make(row) end
if #records > 0 then
  local counts, meta = P .. 'counts', call('HMGET', KEYS[1], 'maxspec', 'v')
  call('HINCRBY', counts, 'submitted', #records)
  call('HINCRBY', counts, 'pending', #records - #rares)
  if #rares > 0 then call('HINCRBY', counts, 'cancelled', #rares) end
  if not meta[2] then call('HSET', KEYS[1], 'v', '1') end
  if largest > tonumber(meta[1] or 0) then call('HSET', KEYS[1], 'maxspec', largest) end
  emit('s', '', table.concat(records))
  if #rares > 0 then emit('v', who, table.concat(rares)) end
  wake(first)
end
return { 'OK', stamp, table.concat(letters), unpack(others) }
