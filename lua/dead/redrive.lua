-- dead/redrive: dead letters become pending again, with their history and fresh tries.
-- moves   dead -> pending
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 who  3… id 16 + due 13
-- gives   OK {stamp, a letter an id: P pending, K its key belongs to another task, ? no dead letter; the other id of each K}
-- bound   ids <= single_max_rows
-- events  redriven
-- memory  refused when full
local counts = P .. 'counts'
need('stream', 'events') need_all('hash', 'counts', 'at', 'tries', 'tally', 'lock') need_all('zset', 'dead', 'agenda')
local rows, letters, others, seen, keys = {}, {}, {}, {}, {}
for i = 3, #ARGV do
  local n, id, due = i - 2, sub(ARGV[i], 1, 16), tonumber(sub(ARGV[i], 17, 29))
  local spec = call('ZSCORE', P .. 'dead', id) and not seen[id] and call('HGET', P .. 'task:' .. shelf(id), id)
  if not spec then letters[n] = '?'
  else
    seen[id] = true
    local at, o = at_of(id, spec), byte(spec, 2) % 16 ~= 0 and spec_options(spec) or {}
    -- A row before this one may have taken the key.
    local v = o.key and (keys[o.name] or call('HGET', P .. 'keys:' .. o.shard, o.name))
    local taken = v and sub(v, 1, 14) ~= key_values().of(id) and (key_values().till(v) or now + 1) > now
    if taken then
      letters[n] = 'K'
      others[#others + 1] = key_values().id(v)
    else
      letters[n] = 'P'
      at.due, at.lane, at.failures = due > now and due or now, lane_of_tier(at.lane, 0), 0
      need('hash', 'dead:' .. id)
      need_due(id, at.due, at.lane)
      if o.key then
        need('hash', 'keys:' .. o.shard)
        keys[o.name] = key_values().of(id)
      end
      -- A total time-out that has passed is no reason to expire at once what somebody wants to run again.
      if o.deadline and o.deadline > lease_clock() then
        o.minute = format('%.0f', floor(o.deadline / 60000))
        need('zset', 'timer:' .. o.minute)
      end
      rows[#rows + 1] = { id = id, at = at, o = o, spec = spec }
    end
  end
end
local records, first = {}, nil
for _, r in ipairs(rows) do
  local id, at = r.id, r.at
  local history = call('HGET', P .. 'dead:' .. id, 'attempts')
  if history then call('HSET', P .. 'tries', id, history) end
  if r.o.key then
    roomy(P .. 'keys:' .. r.o.shard, r.o.name, 1)
    call('HSET', P .. 'keys:' .. r.o.shard, r.o.name, key_values().of(id))
  end
  if r.o.minute then
    call('ZADD', P .. 'timer:' .. r.o.minute, r.o.deadline, id)
    call('ZADD', P .. 'agenda', r.o.minute, 't' .. r.o.minute)
  end
  roomy(P .. 'at', id, 1)
  call('HSET', P .. 'at', id, at_make(at.due, at.lane, at.fence, 0, 0, at.edits))
  due_put(id, at.due, at.lane)
  tally_bound(r.spec, 1)
  call('ZREM', P .. 'dead', id)
  call('UNLINK', P .. 'dead:' .. id)
  records[#records + 1] = rare(id, NO_GRANT, 'V', at.due, 'redriven')
  if not first or at.due < first then first = at.due end
end
if #rows > 0 then
  call('HINCRBY', counts, 'dead', -#rows)
  call('HINCRBY', counts, 'pending', #rows)
  emit('v', ARGV[2], table.concat(records))
  wake(first)
end
return { 'OK', stamp, table.concat(letters), unpack(others) }
