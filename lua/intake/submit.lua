-- intake/submit: rows of one bucket become pending tasks.
-- moves   (new) -> pending
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 ms since the first sending, "" if this is it  3 "1": refuse if the bucket is closed
--         4 first due  5 largest spec  6 number of groups  7 number of keyed shards  8 number of timers  9 number of bounds
--         group: minute, "u" or "", n, events (n × 23 bytes), n × (due, id + lane), n × (id, spec)
--         shard: number, n, n × row (4 digits, counted over all groups, from 1), n × name of the key, n × its value (lib/key)
--         bound: queue with labels (3), most of its tasks here that have not ended, rows (4 digits each)
--         timer: row, minute, deadline
-- gives   OK {stamp, n × (row, DUPLICATE | FATE_UNKNOWN | SPREAD_CHANGED | OVER_BACKLOG, id that stands)}
--         SPREAD_CHANGED {stamp}
-- bound   rows <= batch_max_rows; a due set takes 10,000, then seconds, then sixteenths
-- events  submitted
-- memory  refused when full
local meta = call('HMGET', KEYS[1], 'closed', 'maxspec', 'v', 'sized')
sized_flag = meta[4]
-- Sent again, a row may stand from before the bucket was closed.
local closed = ARGV[3] == '1' and meta[1]
if closed and ARGV[2] == '' then return { 'SPREAD_CHANGED', stamp } end
local agenda, counts = P .. 'agenda', P .. 'counts'
need('zset', 'agenda')
need('stream', 'events')
need_all('hash', 'counts', 'lock')
sized()

-- Where each row stands in ARGV.
local groups, at, total = {}, 10, 0
for g = 1, tonumber(ARGV[6]) do
  local n = tonumber(ARGV[at + 2])
  groups[g] = { minute = ARGV[at], shelf = format('%.0f', floor(ARGV[at] / 60)), base = ARGV[at] .. ARGV[at + 1], n = n, events = ARGV[at + 3], due = at + 4, spec = at + 4 + 2 * n, first = total }
  total = total + n
  at = at + 4 + 4 * n
end
local function spec_at(row)
  for _, g in ipairs(groups) do
    if row <= g.first + g.n then return g.spec + 2 * (row - g.first - 1) end
  end
end

local answers, skip = { 'OK', stamp }, nil
local function refuse(row, code, id)
  skip = skip or {}
  skip[row] = true
  answers[#answers + 1] = row
  answers[#answers + 1] = code
  answers[#answers + 1] = id
end

-- Keys: the first task stands as long as its state or its window says.
local shards, keyed = {}, {}
local function row_of(shard, i) return tonumber(sub(shard.rows, 4 * i - 3, 4 * i)) end
for s = 1, tonumber(ARGV[7]) do
  local n = tonumber(ARGV[at + 1])
  need('hash', 'keys:' .. ARGV[at])
  local args, keys_at = ARGV, at + 2
  local values_at = keys_at + n
  local shard = { key = P .. 'keys:' .. args[at], n = n, rows = args[at + 2], keys_at = keys_at, values_at = values_at }
  local found, seen = call('HMGET', shard.key, unpack(args, keys_at + 1, keys_at + n)), {}
  for i = 1, n do
    local key, v = args[keys_at + i], found[i]
    local first = seen[key]
    if not first and v then
      local id, till = key_values().id(v), key_values().till(v)
      if till and till > now or not till and call('HEXISTS', P .. 'task:' .. shelf(id), id) == 1 then first = v end
    end
    if first then refuse(row_of(shard, i), 'DUPLICATE', key_values().id(first)) end
    seen[key] = first or args[values_at + i]
    -- A key still stands for as long as its window after the first sending, which came before the end.
    if args[2] ~= '' then
      local row = row_of(shard, i)
      keyed[row] = spec_options(args[spec_at(row) + 1]).window
    end
  end
  shards[s] = shard
  at = at + 3 + 2 * n
end

-- Sent again after a lost reply: what is known stays as it is.
if ARGV[2] ~= '' then
  local age, gone, unknown, n = tonumber(ARGV[2]), {}, {}, 0
  for _, g in ipairs(groups) do
    local ids = {}
    for i = 1, g.n do ids[i] = ARGV[g.spec + 2 * i - 2] end
    need('hash', 'task:' .. g.shelf)
    local known = call('HMGET', P .. 'task:' .. g.shelf, unpack(ids))
    for i = 1, g.n do
      local row = g.first + i
      if not (skip and skip[row]) then
        if known[i] then refuse(row, 'DUPLICATE', ids[i])
        else
          gone[ids[i]] = true
          n = n + 1
          unknown[n] = row
        end
      end
    end
  end
  -- The sender's clock knows how long ago that was, but what is remembered lies by the server's, which may have leapt
  -- ahead meanwhile: then there is a gap since the last claim, or reaping pauses for it.
  local seen = call('HMGET', KEYS[1], 'clock', 'pause')
  local gap = n > 0 and seen[1] and now - seen[1] or 0
  local leapt = seen[2] and lease_clock() < seen[2] + 900000
  local hits = recall(gone, n, leapt and 90 or floor((age + (gap > 0 and gap or 0)) / 10000) + 2)
  for _, row in ipairs(unknown) do
    local id = ARGV[spec_at(row)]
    if hits[id] then refuse(row, 'DUPLICATE', id)
    elseif age > 120000 and age > (keyed[row] or 0) then refuse(row, 'FATE_UNKNOWN', id)
    elseif closed then refuse(row, 'SPREAD_CHANGED', id) end
  end
end

-- Queues with a bound for tasks that have not ended: rows beyond it are refused, and so are those that were to stand
-- behind one of them by its key.
local bounds, over = {}, nil
for b = 1, tonumber(ARGV[9]) do
  need('hash', 'tally')
  local field, rows, more = ARGV[at] .. 'b', ARGV[at + 2], 0
  local room = ARGV[at + 1] - (call('HGET', P .. 'tally', field) or 0)
  for i = 1, #rows, 4 do
    local row = tonumber(sub(rows, i, i + 3))
    if skip and skip[row] then
      -- answered already
    elseif more < room then more = more + 1
    else
      over = over or {}
      over[ARGV[spec_at(row)]] = true
      refuse(row, 'OVER_BACKLOG', ARGV[spec_at(row)])
    end
  end
  bounds[b] = { field = field, more = more }
  at = at + 3
end
for i = 4, over and #answers or 0, 3 do
  if answers[i] == 'DUPLICATE' and over[answers[i + 1]] then answers[i] = 'OVER_BACKLOG' end
end

-- Where all of it goes. All rows of a group are new as a rule: then whole stretches of ARGV go to Redis as they stand.
local plans, created, records = {}, 0, {}
for _, g in ipairs(groups) do
  local due, spec, n, events = nil, nil, g.n, g.events
  if skip then
    due, spec, n, events = {}, {}, 0, {}
    for i = 1, g.n do
      if not skip[g.first + i] then
        n = n + 1
        due[2 * n - 1], due[2 * n] = ARGV[g.due + 2 * i - 2], ARGV[g.due + 2 * i - 1]
        spec[2 * n - 1], spec[2 * n] = ARGV[g.spec + 2 * i - 2], ARGV[g.spec + 2 * i - 1]
        events[n] = sub(g.events, 23 * i - 22, 23 * i)
      end
    end
    events = table.concat(events)
  end
  if n > 0 then
    need('hash', 'task:' .. g.shelf)
    local plan = { g = g, n = n, due = due, spec = spec, whole = need('zset', 'due:' .. g.base) < SPLIT }
    if not plan.whole then
      plan.sets, plan.order = {}, {}
      for i = 1, n do
        local score = due and due[2 * i - 1] or ARGV[g.due + 2 * i - 2]
        local member = due and due[2 * i] or ARGV[g.due + 2 * i - 1]
        local name = due_second(g.base, tonumber(score))
        if need('zset', 'due:' .. name) >= SPLIT then
          name = due_fine(name, member)
          need('zset', 'due:' .. name)
        end
        local set = plan.sets[name]
        if not set then
          set = {}
          plan.sets[name] = set
          plan.order[#plan.order + 1] = name
        end
        set[#set + 1] = score
        set[#set + 1] = member
      end
    end
    plans[#plans + 1] = plan
    created = created + n
    records[#records + 1] = events
  end
end
if created == 0 then return answers end
for i = 1, tonumber(ARGV[8]) do need('zset', 'timer:' .. ARGV[at + 3 * i - 2]) end

for _, plan in ipairs(plans) do
  local g, n = plan.g, plan.n
  if sized() then
    local more, from, at = 0, plan.spec or ARGV, plan.spec and 0 or g.spec - 1
    for i = 2, 2 * n, 2 do more = more + #from[at + i] end
    sized().change(g.shelf, more)
  end
  if plan.spec then call('HSET', P .. 'task:' .. g.shelf, unpack(plan.spec))
  else call('HSET', P .. 'task:' .. g.shelf, unpack(ARGV, g.spec, g.spec + 2 * n - 1)) end
  if plan.whole then
    local base = P .. 'due:' .. g.base
    if plan.due then call('ZADD', base, unpack(plan.due))
    else call('ZADD', base, unpack(ARGV, g.due, g.due + 2 * n - 1)) end
    if needed['due:' .. g.base] == 0 then call('ZADD', agenda, g.minute, listed(g.base)) end
  else
    for _, name in ipairs(plan.order) do
      call('ZADD', P .. 'due:' .. name, unpack(plan.sets[name]))
      call('ZADD', agenda, g.minute, listed(name))
    end
  end
end
for _, shard in ipairs(shards) do
  local pairs_, n, args = {}, 0, ARGV
  for i = 1, shard.n do
    if not (skip and skip[row_of(shard, i)]) then
      pairs_[n + 1], pairs_[n + 2] = args[shard.keys_at + i], args[shard.values_at + i]
      n = n + 2
    end
  end
  if n > 0 then
    roomy(shard.key, pairs_[1], n / 2)
    call('HSET', shard.key, unpack(pairs_))
  end
end
for _ = 1, tonumber(ARGV[8]) do
  local row = tonumber(ARGV[at])
  if not (skip and skip[row]) then
    call('ZADD', P .. 'timer:' .. ARGV[at + 1], ARGV[at + 2], ARGV[spec_at(row)])
    call('ZADD', agenda, ARGV[at + 1], 't' .. ARGV[at + 1])
  end
  at = at + 3
end
for _, bound in ipairs(bounds) do
  if bound.more > 0 then call('HINCRBY', P .. 'tally', bound.field, bound.more) end
end
call('HINCRBY', counts, 'submitted', created)
call('HINCRBY', counts, 'pending', created)
if not meta[3] then call('HSET', KEYS[1], 'v', '1') end
if tonumber(ARGV[5]) > tonumber(meta[2] or 0) then call('HSET', KEYS[1], 'maxspec', ARGV[5]) end
emit('s', '', records[2] and table.concat(records) or records[1])
wake(tonumber(ARGV[4]))
return answers
