-- run/ack: outcomes of one executor's tasks are accepted, each once, under the current grant.
-- moves   running -> succeeded | cancelled | skipped | pending (tried again) | dead
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 executor  3 "1" if sent again  4 chance 0..1  5 rows n  6 "1" if all are S, each once
--         7 n × (id 16 + grant 18 + outcome 1 + lag 5 + took 5)  8 n × (id 16 + outcome 1 + fence 8)  9 n × lag bin 2
--         10 number of runs  11 number of lag bins, then for each run: home hour, grant, rows; for each bin: bin, rows;
--         then n × id, run by run; unless 6 is "1", n × text
--         outcome: S done, C cancelled, K not started: too late, F failed, D do not retry,
--         A after (13 digits of ms, then 1 if counted, then text)
-- gives   OK {stamp, a letter a row: S, C, K, R tried again, D dead, Z stale, N known already; due of each R}
-- bound   rows <= ack_max_weight, where one that does not end its task counts as ack_failure_weight
-- events  ended; retried, died, cancelled, skipped
-- memory  allow-oom
local args, run, counts = ARGV, P .. 'run', P .. 'counts'
local who, again, chance, n = args[2], args[3] == '1', tonumber(args[4]), tonumber(args[5])
local ended_rows, recent_rows, bin_rows = args[7], args[8], args[9]
local runs_at = 11
local bins_at = runs_at + 3 * tonumber(args[10])
local ids_at = bins_at + 2 * tonumber(args[11])
local texts_at = ids_at + n
local lag_name = 'lag:' .. format('%.0f', floor(now / 60000))
local lag_key = P .. lag_name
need('stream', 'events')
need_all('hash', 'counts', 'tally', 'run', 'at', 'tries', 'lock', lag_name)
need_all('zset', 'agenda', 'dead')
need_recent()
sized()
for a = runs_at + 1, bins_at, 3 do need('hash', 'task:' .. args[a]) end
local found = call('HMGET', run, unpack(args, ids_at + 1, ids_at + n))
local function lags(bins, worst)
  local fresh
  for bin, c in pairs(bins) do fresh = call('HINCRBY', lag_key, bin, c) == tonumber(c) or fresh end
  if fresh then call('EXPIRE', lag_key, 600) end
  if worst > (call('HGET', lag_key, 'max') or '') then call('HSET', lag_key, 'max', worst) end
end

-- As a rule all succeed under their current grants and have nothing else to clear away but perhaps a key and a total
-- time-out: then whole stretches of ARGV go to Redis as they stand. Answers what is to be done about these, or nothing
-- where a row is of another kind.
local function plain()
  if args[6] ~= '1' then return end
  local i, kept, timed, k, t, kinds, counted, bounds = 0, {}, {}, 0, 0, {}, nil, nil
  for a = runs_at + 1, bins_at, 3 do
    local grant, before, keeps, timer, group, bound = args[a + 1], nil, nil, nil, nil, nil
    for _ = 1, tonumber(args[a + 2]) do
      i = i + 1
      local r = found[i]
      if r ~= before then
        if not r then return end
        -- Tasks of one claim and lane have the same record.
        local kind = kinds[r]
        if not kind then
          local bits = byte(r, 3) - 48
          if run_cancelled(r) or bits % 8 > 3 or bits % 32 >= 16 then return end
          local own = sub(r, 37, 39)
          kind = { grant = run_grant(r), keeps = bits % 4 > 0, timer = bits % 4 >= 2, group = bits % 16 >= 8 and own, bound = bits >= 32 and own }
          kinds[r] = kind
        end
        if kind.grant ~= grant then return end
        before, keeps, timer, group, bound = r, kind.keeps, kind.timer, kind.group, kind.bound
      end
      if group then
        counted = counted or {}
        counted[group] = (counted[group] or 0) + 1
      end
      if bound then
        bounds = bounds or {}
        bounds[bound] = (bounds[bound] or 0) + 1
      end
      if keeps then
        k = k + 1
        kept[k] = args[ids_at + i]
      end
      if timer then
        t = t + 1
        timed[t] = args[ids_at + i]
      end
    end
  end
  if k == 0 then return {}, counted, bounds end
  local specs = specs_of(kept)
  local timers = timers_ending(timed, specs)
  if timers then return { keys = keys_ending(kept, specs), timers = timers }, counted, bounds end
end
-- Limits of running tasks let others go now.
local function freed() call('SPUBLISH', P .. 'wake', now13) end
local ends, counted, bounds = plain()
if ends then
  local at, rows = ids_at, 0
  for a = runs_at + 1, bins_at, 3 do
    rows = rows + tonumber(args[a + 2])
    if a + 3 > bins_at or args[a + 3] ~= args[a] then
      if sized() then specs_drop(args[a], { unpack(args, at + 1, at + rows) })
      else call('HDEL', P .. 'task:' .. args[a], unpack(args, at + 1, at + rows)) end
      at, rows = at + rows, 0
    end
  end
  if ends.keys then
    keys_end(ends.keys)
    for timer, late in pairs(ends.timers) do call('ZREM', timer, unpack(late)) end
  end
  call('HDEL', run, unpack(args, ids_at + 1, ids_at + n))
  if counted then
    for group, k in pairs(counted) do
      tally(group, 'r', -k)
      tally(group, 's', k)
    end
    freed()
  end
  for group, k in pairs(bounds or {}) do tally(group, 'b', -k) end
  remember(recent_rows)
  call('HINCRBY', counts, 'running', -n)
  call('HINCRBY', counts, 'succeeded', n)
  local bins, worst = {}, ''
  for b = bins_at + 1, ids_at, 2 do
    if args[b] == 'max' then worst = args[b + 1] else bins[args[b]] = args[b + 1] end
  end
  if worst ~= '' then lags(bins, worst) end
  emit('e', who, ended_rows)
  return { 'OK', stamp, string.rep('S', n) }
end

local ids, letters, dues = {}, {}, {}
local ENDS = { S = true, C = true, K = true }
for i = 1, n do ids[i] = args[ids_at + i] end
local function row_of(i) return sub(ended_rows, 45 * i - 44, 45 * i) end
local function said_of(i) return args[6] == '1' and '' or args[texts_at + i] end
local function asked_after(said) return tonumber(sub(said, 1, 13)) end
-- What would be written is looked at first; and in one go, what became of rows that are not current.
local past, n_past, hits, long = {}, 0, {}, {}
local function needs_spec(r, outcome) return (byte(r, 3) - 48) % 8 ~= 0 or run_placed(r) or not (ENDS[outcome] or run_cancelled(r)) end
for i = 1, n do
  if found[i] and needs_spec(found[i], sub(row_of(i), 35, 35)) then long[#long + 1] = ids[i] end
end
local spec_by_id, specs = specs_of(long), {}
for i = 1, n do
  local row, said, r, id = row_of(i), said_of(i), found[i], ids[i]
  local outcome = sub(row, 35, 35)
  if not r or run_grant(r) ~= sub(row, 17, 34) then
    if again and not past[id] then
      past[id] = true
      n_past = n_past + 1
    end
  elseif needs_spec(r, outcome) then
    local spec = spec_by_id[id]
    specs[i] = spec
    if not spec then
      -- dropped below
    elseif ENDS[outcome] or run_cancelled(r) then need_end(id, spec)
    elseif outcome == 'A' and sub(said, 14, 14) == '0' then
      if placed(spec) then turns().need() end
      need_due(id, now + asked_after(said), at_of(id, spec).lane)
    else need_fail(id, spec, outcome == 'D', outcome == 'A' and asked_after(said) or nil, chance) end
  end
end
if n_past > 0 then hits = recall(past, n_past, 12, 16777216) end
local done, homes, away, ended, recent, rares = {}, {}, {}, {}, {}, {}
local bins, worst, succeeded, cancelled, skipped, pending, dead = {}, '-----', 0, 0, 0, 0, 0
local gone, moved, timers, with_key, counts_any = {}, {}, {}, {}, false
for i = 1, n do
  local row, said, r, id = row_of(i), said_of(i), found[i], ids[i]
  local outcome = sub(row, 35, 35)
  if not r or gone[id] or run_grant(r) ~= sub(row, 17, 34) then
    letters[i] = 'Z'
    if again then
      local at = call('HGET', P .. 'at', id)
      if at and not r and sub(at, 18, 25) == sub(row, 17, 24) then letters[i] = 'N'
      elseif hits[id] and sub(hits[id], 2) == sub(row, 17, 24) then letters[i] = 'N' end
    end
  else
    gone[id] = true
    local all_bits, flagged = byte(r, 3) - 48, run_cancelled(r)
    local bits = all_bits % 8
    counts_any = counts_any or all_bits % 16 >= 8
    local lag, bin = sub(row, 36, 40), sub(bin_rows, 2 * i - 1, 2 * i)
    if bin ~= 'zz' then
      bins[bin] = (bins[bin] or 0) + 1
      if lag > worst then worst = lag end
    end
    local final = flagged and 'C' or (ENDS[outcome] and outcome)
    if final then
      if all_bits >= 8 then tally_end(id, specs[i], r, final == 'S' and 's' or nil) end
      local m = shelf(id)
      local h = homes[m]
      if not h then
        h = {}
        homes[m] = h
      end
      h[#h + 1] = id
      recent[#recent + 1] = id .. final .. sub(row, 17, 24)
      if bits == 0 then
        if all_bits >= 32 then tally(sub(r, 37, 39), 'b', -1) end
        if all_bits % 32 >= 16 and specs[i] then turns().ended(id, specs[i]) end
        done[#done + 1] = id
      else
        local spec = specs[i]
        if spec then finish(id, spec, final, sub(row, 17, 24), final == 'K' and 'too late to start' or nil, timers) end
        if spec and byte(spec, 2) % 2 == 1 then with_key[#with_key + 1] = id end
        -- Where it was not at home, that was noted.
        if bits >= 4 then moved[#moved + 1] = id end
        done[#done + 1] = id
      end
      if final == 'K' then rares[#rares + 1] = rare(id, run_grant(r), 'K', 0, 'too late: ' .. who .. ' got it after its latest start')
      else ended[#ended + 1] = sub(row, 1, 34) .. final .. sub(row, 36, 45) end
      letters[i] = final
      if final == 'S' then succeeded = succeeded + 1
      elseif final == 'K' then skipped = skipped + 1
      else cancelled = cancelled + 1 end
    else
      local spec = specs[i]
      if not spec then
        call('HDEL', run, id)
        rares[#rares + 1] = rare(id, run_grant(r), 'F', 0, 'running without a spec: dropped')
        call('HINCRBY', counts, 'deleted', 1)
        letters[i] = 'Z'
        away[#away + 1] = id
        tally_end(id, specs[i], r)
        if run_bound(r) then tally(sub(r, 37, 39), 'b', -1) end
      elseif outcome == 'A' and sub(said, 14, 14) == '0' then
        local at = at_of(id, spec)
        local due = now + asked_after(said)
        roomy(P .. 'at', id, 1)
        call('HSET', P .. 'at', id, at_make(due, at.lane, sub(row, 17, 24), at.failures, run_losses(r), at.edits))
        due_put(id, due, at.lane)
        call('HDEL', run, id)
        tally_end(id, specs[i], r)
        pending = pending + 1
        letters[i] = 'R'
        dues[#dues + 1] = due
        rares[#rares + 1] = rare(id, run_grant(r), 'R', due, 'asked to be tried again, uncounted: ' .. sub(said, 15))
      else
        local text, after = said, nil
        if outcome == 'A' then text, after = sub(said, 15), asked_after(said) end
        local held = sub(r, 1, 40) .. who
        local to, due = fail(id, held, spec, text, outcome == 'D' and 'fatal' or 'handler_error', outcome == 'D', after, chance)
        letters[i] = to
        if to == 'R' then
          pending = pending + 1
          dues[#dues + 1] = due
        else
          dead = dead + 1
        end
        rares[#rares + 1] = rare(id, run_grant(r), to, due, text)
      end
    end
  end
end
if with_key[1] then keys_end(keys_ending(with_key, spec_by_id)) end
for timer, late in pairs(timers) do call('ZREM', timer, unpack(late)) end
for m, h in pairs(homes) do specs_drop(m, h) end
if #moved > 0 then
  call('HDEL', P .. 'at', unpack(moved))
  call('HDEL', P .. 'tries', unpack(moved))
end
if #done > 0 then call('HDEL', run, unpack(done)) end
if #recent > 0 then remember(table.concat(recent)) end
local left = succeeded + cancelled + skipped + pending + dead + #away
if left > 0 then
  call('HINCRBY', counts, 'running', -left)
  if succeeded > 0 then call('HINCRBY', counts, 'succeeded', succeeded) end
  if cancelled > 0 then call('HINCRBY', counts, 'cancelled', cancelled) end
  if skipped > 0 then call('HINCRBY', counts, 'skipped', skipped) end
  if pending > 0 then call('HINCRBY', counts, 'pending', pending) end
  if dead > 0 then call('HINCRBY', counts, 'dead', dead) end
  if next(bins) then lags(bins, worst) end
  if #ended > 0 then emit('e', who, table.concat(ended)) end
  if #rares > 0 then emit('v', who, table.concat(rares)) end
end
if counts_any then freed() end
if #dues > 0 then
  local first = dues[1]
  for i = 2, #dues do first = dues[i] < first and dues[i] or first end
  wake(first)
end
return { 'OK', stamp, table.concat(letters), unpack(dues) }
