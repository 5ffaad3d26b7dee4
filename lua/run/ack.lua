-- run/ack: outcomes of one executor's tasks are accepted, each once, under the current grant.
-- moves   running -> succeeded | cancelled | skipped | pending (tried again) | dead
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 executor  3 "1" if sent again  4 chance 0..1  5… rows:
--         id 16 + grant 18 + outcome 1 + lag 5 + took 5 + lag bin 2 + text
--         outcome: S done, C cancelled, K not started: too late, F failed, D do not retry,
--         A after (13 digits of ms, then 1 if counted, then text)
-- gives   OK {stamp, a letter a row: S, C, K, R tried again, D dead, Z stale, N known already; due of each R}
-- bound   rows <= batch_max_rows
-- events  ended; retried, died, skipped
-- memory  allow-oom
local who, again, chance = ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
local run, counts, n = P .. 'run', P .. 'counts', #ARGV - 4
local lag_name = 'lag:' .. format('%.0f', floor(now / 60000))
local lag_key = P .. lag_name
need('stream', 'events')
need_all('hash', 'counts', 'run', 'at', 'tries', lag_name)
need_all('zset', 'agenda', 'dead')
need('string', recent_name(recent_ten()))
local ids, letters, dues = {}, {}, {}
local ENDS = { S = true, C = true, K = true }
for i = 1, n do ids[i] = sub(ARGV[i + 4], 1, 16) end
local found = call('HMGET', run, unpack(ids))
local function asked_after(row) return tonumber(sub(row, 48, 60)) end
-- What would be written is looked at first; and in one go, what became of rows that are not current.
local specs, past, n_past, hits = {}, {}, 0, {}
for i = 1, n do
  local row, r, id = ARGV[i + 4], found[i], ids[i]
  local outcome = sub(row, 35, 35)
  if not r or run_grant(r) ~= sub(row, 17, 34) then
    if again and not past[id] then
      past[id] = true
      n_past = n_past + 1
    end
  elseif run_bits(r) == 0 and (ENDS[outcome] or run_cancelled(r)) then
    need('hash', 'task:' .. home(id))
  else
    local spec = call('HGET', P .. 'task:' .. home(id), id)
    specs[i] = spec
    if not spec then
      -- dropped below
    elseif ENDS[outcome] or run_cancelled(r) then need_end(id, spec)
    elseif outcome == 'A' and sub(row, 61, 61) == '0' then need_due(id, now + asked_after(row), at_of(id, spec).lane)
    else need_fail(id, spec, outcome == 'D', outcome == 'A' and asked_after(row) or nil, chance) end
  end
end
if n_past > 0 then hits = recall(past, n_past, 12, 16777216) end
local done, homes, away, ended, recent, rares = {}, {}, {}, {}, {}, {}
local bins, worst, succeeded, cancelled, skipped, pending, dead = {}, '-----', 0, 0, 0, 0, 0
local gone = {}
for i = 1, n do
  local row, r, id = ARGV[i + 4], found[i], ids[i]
  local outcome = sub(row, 35, 35)
  if not r or gone[id] or run_grant(r) ~= sub(row, 17, 34) then
    letters[i] = 'Z'
    if again then
      local at = call('HGET', P .. 'at', id)
      if at and not r and sub(at, 18, 25) >= sub(row, 17, 24) then letters[i] = 'N'
      elseif hits[id] and sub(hits[id], 2) == sub(row, 17, 24) then letters[i] = 'N' end
    end
  else
    gone[id] = true
    local flagged, bits = run_cancelled(r), run_bits(r)
    local lag = sub(row, 36, 40)
    if sub(row, 46, 47) ~= 'zz' then
      local bin = sub(row, 46, 47)
      bins[bin] = (bins[bin] or 0) + 1
      if lag > worst then worst = lag end
    end
    local final = flagged and 'C' or (ENDS[outcome] and outcome)
    if final then
      if bits == 0 then
        local m = sub(id, 1, 5)
        local h = homes[m]
        if not h then
          h = {}
          homes[m] = h
        end
        h[#h + 1] = id
        recent[#recent + 1] = id .. final .. sub(row, 17, 24)
        done[#done + 1] = id
      else
        local spec = specs[i]
        if spec then finish(id, spec, final, sub(row, 17, 24)) end
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
      elseif outcome == 'A' and sub(row, 61, 61) == '0' then
        local at = at_of(id, spec)
        local due = now + asked_after(row)
        call('HSET', P .. 'at', id, at_make(due, at.lane, sub(row, 17, 24), at.failures, run_losses(r), at.edits))
        due_put(id, due, at.lane)
        call('HDEL', run, id)
        pending = pending + 1
        letters[i] = 'R'
        dues[#dues + 1] = due
        rares[#rares + 1] = rare(id, run_grant(r), 'R', due, 'asked to be tried again, uncounted: ' .. sub(row, 62))
      else
        local text, after = sub(row, 48), nil
        if outcome == 'A' then text, after = sub(row, 62), asked_after(row) end
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
for m, h in pairs(homes) do call('HDEL', P .. 'task:' .. home(m), unpack(h)) end
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
  local fresh = nil
  for bin, c in pairs(bins) do
    fresh = call('HINCRBY', lag_key, bin, c) == c or fresh
  end
  if fresh ~= nil then
    if fresh then call('EXPIRE', lag_key, 600) end
    if worst > (call('HGET', lag_key, 'max') or '') then call('HSET', lag_key, 'max', worst) end
  end
  if #ended > 0 then emit('e', who, table.concat(ended)) end
  if #rares > 0 then emit('v', who, table.concat(rares)) end
end
return { 'OK', stamp, table.concat(letters), unpack(dues) }
