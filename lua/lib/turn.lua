-- lib/turn: limits of placement keys: who of one recipient, tenant or order may go now, and who waits.
-- A key's name: queue with labels 3, 16 hex digits of its bytes. What is known of it lies here only while it matters:
-- zset `kept`: name 19 + due 13 + id 16 + lane 4, in the order of these bytes: tasks that wait, by key and due time
-- zset `looks`: name, by when it is looked after: what waits may come back, or what is known may go
-- hash `turns`: name -> id whose turn it is until it ends; `flight`: name -> ids granted under a bound;
-- `spent`: name -> times of its last grants, 13 digits each; `newest`: name -> id submitted last, until it is granted
-- Even functions cost, and most calls have no use for these: they are made when they are asked for.
local function placed(spec) return byte(spec, 2) % 4 >= 2 end
local turns_
local function turns()
  if turns_ then return turns_ end
  local t = { came = 0 }
  turns_ = t
  -- How often what waits is looked after without a signal, keys looked after in a visit, tasks that come back for one.
  local SWEEP, LOOKS, BACK, WIDTH = 10000, 128, 16, 29
  local kept, looks, flight, spent, turn = P .. 'kept', P .. 'looks', P .. 'flight', P .. 'spent', P .. 'turns'
  local text, known = '', {}
  -- Rules, sorted, 29 characters each: queue with labels 3, 1 if in order, 1 if only the newest, running 2, and twice
  -- so many 3 in so many ms 8; 0 where there is none.
  t.rules = function(rules) text, known, t.ruled = rules, {}, rules ~= '' end
  t.rule = function(group)
    local rule = known[group]
    if rule ~= nil then return rule end
    rule = false
    local low, high = 0, #text / WIDTH - 1
    while low <= high do
      local mid = floor((low + high) / 2)
      local row = sub(text, WIDTH * mid + 1, WIDTH * mid + WIDTH)
      local here = sub(row, 1, 3)
      if here == group then
        rule = { ordered = sub(row, 4, 4) == '1', newest = sub(row, 5, 5) == '1', most = tonumber(sub(row, 6, 7)), longest = 0 }
        for i = 8, 19, 11 do
          local most, ms = tonumber(sub(row, i, i + 2)), tonumber(sub(row, i + 3, i + 10))
          if most > 0 then
            rule[#rule + 1] = { most = most, ms = ms }
            rule.longest = ms > rule.longest and ms or rule.longest
            rule.log = most > (rule.log or 0) and most or rule.log
          end
        end
        break
      end
      if here < group then low = mid + 1 else high = mid - 1 end
    end
    known[group] = rule
    return rule
  end
  -- What a key is called here, and its bytes.
  local last, last_name, last_key
  t.name = function(spec)
    if spec == last then return last_name, last_key end
    local at = spec_rest(spec)
    if byte(spec, 2) % 2 == 1 then at = at + spec_key_len(spec, at) end
    local key = sub(spec, at + 2, at + 1 + u16(spec, at))
    last, last_name, last_key = spec, sub(spec, 3, 5) .. sub(redis.sha1hex(key), 1, 16), key
    return last_name, key
  end
  t.member = function(name, id, due, lane) return name .. format('%013.0f', due) .. id .. lane end
  t.need = function()
    need_all('zset', 'kept', 'looks')
    need_all('hash', 'turns', 'flight', 'spent', 'newest')
  end
  local function waits(name, n) return call('ZRANGE', kept, '[' .. name, '(' .. name .. ':', 'BYLEX', 'LIMIT', 0, n) end
  -- Looks again at `at`, or before if that was to be.
  local function look_at(name, at)
    call('ZADD', looks, 'LT', at, name)
    call('HSET', KEYS[1], 'looks', '1')
  end
  -- Something of a key has ended: who waits for it may come.
  local any
  local function signal(name)
    if any == nil then any = call('EXISTS', kept) == 1 end
    if not any or not waits(name, 1)[1] then return end
    look_at(name, now)
    if not t.told then call('SPUBLISH', P .. 'wake', now13) end
    t.told = true
  end
  -- Those of a key that run under a bound. What has left `run` unseen is left out, so that nothing waits for it.
  local function flying(ids)
    local list = {}
    if not ids then return list end
    for i = 1, #ids, 16 do list[#list + 1] = sub(ids, i, i + 15) end
    local found, out = call('HMGET', P .. 'run', unpack(list)), {}
    for i, id in ipairs(list) do
      if found[i] then out[#out + 1] = id end
    end
    return out
  end
  local function turn_of(id)
    local spec = id and call('HGET', P .. 'task:' .. shelf(id), id)
    if spec and not call('ZSCORE', P .. 'dead', id) then return id, spec end
  end
  -- How many more may go by the windows; where none, when one may.
  local function room(log, rule)
    local least, at = 1000, nil
    local n = #log / 13
    local function time(i) return tonumber(sub(log, 13 * i - 12, 13 * i)) end
    for _, w in ipairs(rule) do
      local used = 0
      while used < n and used < w.most and time(n - used) + w.ms > now do used = used + 1 end
      if w.most - used < least then least = w.most - used end
      if used == w.most then
        local free = time(n - used + 1) + w.ms
        at = at and at > free and at or free
      end
    end
    return least, at
  end
  local function words(key)
    if #key <= 64 and not string.find(key, '[^%w%p ]') then return key end
    return redis.sha1hex(key)
  end
  local function earlier(a, b) return a.due < b.due or (a.due == b.due and a.id < b.id) end
  -- Which of the chosen tasks wait, and what is to be noted of those that go: by their place among the chosen.
  t.gate = function(n, ids, chosen, specs, ats)
    local by, all, names, stay, go = {}, {}, {}, {}, {}
    for i = 1, n do
      local spec = specs[i]
      local rule = spec and placed(spec) and t.rule(sub(spec, 3, 5))
      if rule and not (byte(spec, 2) % 32 >= 16 and spec_options(spec).start_before < now) then
        local name, key = t.name(spec)
        local b = by[name]
        if not b then
          b = { name = name, key = key, rule = rule }
          by[name] = b
          all[#all + 1], names[#names + 1] = b, name
        end
        b[#b + 1] = { i = i, id = ids[i], due = ats[i] and at_read(ats[i]).due or spec_due(ids[i], spec) }
      end
    end
    if not names[1] then return stay, go end
    -- What is known of all of them, in one go each.
    local flights, firsts, logs = call('HMGET', flight, unpack(names)), call('HMGET', turn, unpack(names)), call('HMGET', spent, unpack(names))
    local newest, any_waits = call('HMGET', P .. 'newest', unpack(names)), call('EXISTS', kept) == 1
    for n_th, b in ipairs(all) do
      b.newest = newest[n_th]
      local rule, most, why, at = b.rule, #b, nil, nil
      if b[2] then table.sort(b, earlier) end
      if rule.ordered then
        local first = turn_of(firsts[n_th])
        b.turn = first
        if first then
          most = 0
          for k, row in ipairs(b) do
            if row.id == first then
              table.remove(b, k)
              table.insert(b, 1, row)
              most = 1
              break
            end
          end
        else
          most = 1
          local head = any_waits and waits(b.name, 1)[1]
          local waiting = head and { due = tonumber(sub(head, 20, 32)), id = sub(head, 33, 48) }
          if waiting and earlier(waiting, b[1]) then most, first, at = 0, waiting.id, now end
        end
        why = most < #b and (first or b[1].id) .. ' of ' .. words(b.key) .. ' comes first'
      elseif rule.most > 0 then
        b.flying = flying(flights[n_th])
        most = rule.most - #b.flying
        if most < 0 then most = 0 end
        why = most < #b and rule.most .. ' of ' .. words(b.key) .. (rule.most == 1 and ' is running' or ' are running')
      end
      if rule[1] then
        b.log = logs[n_th] or ''
        local left, free = room(b.log, rule)
        if left < most then most, at, why = left, free, words(b.key) .. ' has had its share' end
      end
      for k, row in ipairs(b) do
        if k <= most then go[row.i] = b
        else stay[row.i] = { name = b.name, due = row.due, why = why, at = at or now + (rule[1] and rule.longest < SWEEP and rule.longest or SWEEP) } end
      end
    end
    return stay, go
  end
  -- A task is set aside; the caller takes it out of its place. What `keep` and `went` say is written by `land`.
  local sets, moved, turning, logged, looking, older, touched = {}, {}, {}, {}, {}, {}, {}
  t.keep = function(row, id, lane)
    sets[#sets + 1], sets[#sets + 2] = 0, t.member(row.name, id, row.due, lane)
    looking[#looking + 1], looking[#looking + 2] = format('%.0f', row.at), row.name
  end
  -- A task of a key goes; answers whether somebody has to know when it leaves `run`.
  t.went = function(b, id)
    if not touched[b] then touched[b], touched[#touched + 1] = true, b end
    if b.rule.ordered then b.turn = id end
    if b.flying then b.flying[#b.flying + 1] = id end
    if b.log then b.log = sub(b.log .. now13, -13 * b.rule.log) end
    if b.newest == id then older[#older + 1] = b.name end
    return b.rule.ordered or b.rule.most > 0
  end
  t.land = function()
    for _, b in ipairs(touched) do
      if b.rule.ordered then turning[#turning + 1], turning[#turning + 2] = b.name, b.turn end
      if b.flying then moved[#moved + 1], moved[#moved + 2] = b.name, table.concat(b.flying) end
      if b.log then
        logged[#logged + 1], logged[#logged + 2] = b.name, b.log
        looking[#looking + 1], looking[#looking + 2] = format('%.0f', now + b.rule.longest), b.name
      end
    end
    for key, fields in pairs({ [turn] = turning, [flight] = moved, [spent] = logged }) do
      if fields[1] then
        roomy(key, fields[1], #fields / 2)
        call('HSET', key, unpack(fields))
      end
    end
    if older[1] then call('HDEL', P .. 'newest', unpack(older)) end
    if sets[1] then call('ZADD', kept, unpack(sets)) end
    if looking[1] then
      for i = 1, #looking, 4000 do call('ZADD', looks, 'LT', unpack(looking, i, i + 3999 < #looking and i + 3999 or #looking)) end
      call('HSET', KEYS[1], 'looks', '1')
    end
  end
  -- Looks after the keys whose time has come; tasks that may go come back to where their due time says.
  t.come = function(need_due, due_put)
    for _, name in ipairs(call('ZRANGE', looks, '-inf', now, 'BYSCORE', 'LIMIT', 0, LOOKS)) do
      local rule, most, back, at, log = t.rule(sub(name, 1, 3)), BACK, nil, nil, nil
      local first, first_spec, runs
      if not rule then
        -- All may come. Whose turn it is and who runs is kept for those who still know a rule; it goes with these tasks.
      elseif rule.ordered then
        most = 1
        first, first_spec = turn_of(call('HGET', turn, name))
        if first then
          -- One that came back for another try may wait here itself.
          local place = at_of(first, first_spec)
          back = { t.member(name, first, place.due, place.lane) }
          if not call('ZSCORE', kept, back[1]) then most = 0 end
        else call('HDEL', turn, name) end
      elseif rule.most > 0 then
        runs = flying(call('HGET', flight, name))
        most = rule.most - #runs
        if #runs == 0 then call('HDEL', flight, name) end
      end
      if rule and rule[1] then
        local left
        log = call('HGET', spent, name) or ''
        left, at = room(log, rule)
        if left < most then most = left end
      end
      if most > BACK then most = BACK end
      if not back or most < 1 then back = waits(name, most > 0 and most or 1) end
      for k = 1, most do
        local member = back[k]
        if not member then break end
        local due, id, lane = tonumber(sub(member, 20, 32)), sub(member, 33, 48), sub(member, 49, 52)
        need('zset', 'agenda')
        need_due(id, due, lane)
        due_put(id, due, lane)
        call('ZREM', kept, member)
        call('HINCRBY', P .. 'counts', 'held', -1)
        if rule and rule.ordered then call('HSET', turn, name, id) end
        t.came = t.came + 1
      end
      if waits(name, 1)[1] then call('ZADD', looks, rule and at or now + (rule and SWEEP or 0), name)
      else
        local gone = log and log ~= '' and tonumber(sub(log, -13)) + rule.longest
        if gone and gone > now then call('ZADD', looks, gone, name)
        else
          call('HDEL', spent, name)
          call('ZREM', looks, name)
        end
      end
    end
    if call('EXISTS', looks) == 0 then call('HDEL', KEYS[1], 'looks') end
    return t.came
  end
  -- A granted task leaves `run`, however.
  t.left = function(id, spec)
    local name = t.name(spec)
    local ids = needed.flight ~= 0 and call('HGET', flight, name)
    if ids == id then call('HDEL', flight, name)
    elseif ids then
      local list = {}
      for i = 1, #ids, 16 do
        local own = sub(ids, i, i + 15)
        if own ~= id then list[#list + 1] = own end
      end
      if list[1] then call('HSET', flight, name, table.concat(list)) else call('HDEL', flight, name) end
    end
    signal(name)
  end
  -- A task that is moved gives its turn up.
  t.moved = function(id, spec)
    local name = t.name(spec)
    -- What is empty and was looked at is not asked again.
    if needed.turns ~= 0 and call('HGET', turn, name) == id then
      call('HDEL', turn, name)
      signal(name)
    end
  end
  -- A task ends for good.
  t.ended = function(id, spec)
    t.moved(id, spec)
    local name = t.name(spec)
    if needed.newest ~= 0 and call('HGET', P .. 'newest', name) == id then call('HDEL', P .. 'newest', name) end
  end
  -- Takes a task that waits out of its place; answers whether it was there.
  t.unkeep = function(id, due, lane, spec)
    if call('ZREM', kept, t.member(t.name(spec), id, due, lane)) == 0 then return false end
    call('HINCRBY', P .. 'counts', 'held', -1)
    return true
  end
  return t
end
