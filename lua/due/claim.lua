-- due/claim: what is due in one bucket is granted to one pod.
-- moves   pending -> running | skipped; lapsed running -> pending | dead | cancelled; timers -> expired
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 pod  3 permit (16)  4 call id (16)  5 nonce (10)  6 limit  7 limit of P2 to P5
--         8 bytes  9 holders  10 lock_ms  11 dispatch_ms, and ;group ms for each queue with one of its own  12 lease_ms  13 now expected by the caller, "away" if it is new here and was away itself, or ""
--         14 chance 0..1  15 bytes of events  16 dead letters: ms  17 dead letters: rows  18-23 weights: a number, or number + ms after which it doubles, and ;group weight for each queue with one of its own
--         24 quota of a queue (-1: may not be claimed)  25 its quota of P2 to P5  26 signature of the -1 quotas
--         27 look-ahead ms: what is due so soon is granted too, if all of it may go
--         28 n, n × (group, quota, quota)  then the signature of the frozen plans, n, n × name  then: "1" if no retries
--         may go, else "0", and behind it queues that may not be claimed (3 each, in order), then, where there are some, ";" and
--         the rules of placement keys (lib/turn), until when purses are good or "", groups that are counted (3 each), n, n × (kind, amount) purses: t amount,
--         r amount less what runs, n, n × (group 3 + a digit for each tier 0 to 6: 1 if it pays, purse)
-- gives   OK {stamp, next due (with a backlog: of an urgent task to come) or -1, backlog, reaped, leap_ms, 1 if a step was cut off: come at once,
--         clock of the last claim or 0, 1 if nothing runs, stands in a lane or is held, n × (head, spec)},
--         and where there are purses or counted groups: n × (spent "," left behind ";") | n × (running "," ok "," failed ";")
--         head: id 16 + lane 4 of a task at home, under fence 1 and this call's nonce; else + grant 18 + due 13 + failures 2
--         NOT_HOLDER {stamp, until}
-- bound   rows <= limit, and 500 where there are rules of placement keys; ripens <= 2,000 ids; looks into <= 80 due sets, 64 lanes a priority; reaps <= 250;
--         looks through <= 2,000 ripe specs for frozen plans, brings back <= 500 tasks of thawed ones; looks after <= 128
--         placement keys, brings back <= 16 tasks of each
-- events  claimed, set aside, lost, retried, died, cancelled, expired, skipped, repaired, deleted
-- memory  allow-oom
local pod, permit, nonce = ARGV[2], ARGV[3], ARGV[5]
-- Most that one visit ripens, looks into and sets aside. (In one table: Lua allows a function 200 names.)
local MOST = { ripen = 2000, sets = 32, new_sets = 8, lanes = 64, sift = 2000 }
local limit, normal_limit = tonumber(ARGV[6]), tonumber(ARGV[7])
local lock_ms, dispatch_ms, lease_ms = tonumber(ARGV[10]), tonumber(ARGV[11]) or tonumber(string.match(ARGV[11], '^%d+')), tonumber(ARGV[12])
local lock, run, counts, agenda, leases = P .. 'lock', P .. 'run', P .. 'counts', P .. 'agenda', P .. 'leases'
local meta = call('HMGET', KEYS[1], 'clock', 'reap', 'reapoff', 'evb', 'pause', 'sig', 'scanat', 'scan', 'maxspec', 'v', 'held', 'heldsig', 'skew', 'kept', 'looks')
-- The clock of leases. The server's has gone back: it goes on from where it was, at half speed until that is made up for.
local clock, skew_was = tonumber(meta[1] or 0), tonumber(meta[13] or 0)
local skew, lnow = skew_was, now + skew_was
if skew > 0 and lnow > clock then
  local half = math.ceil((lnow - clock) / 2)
  if half > skew then half = skew end
  skew, lnow = skew - half, lnow - half
end
if lnow < clock then skew, lnow = clock - now, clock end
lease_now = lnow
dispatch_ms = math.ceil((lnow + dispatch_ms) / 1000) * 1000 - lnow

-- The permit. The lock is economy, not safety: a claim is atomic whoever makes it.
local ended = {}
do
local mine = call('HGET', lock, pod)
local function live(v)
  local till = tonumber(sub(v, 17, 29))
  return till > now and till <= now + 2 * lock_ms
end
if not (mine and sub(mine, 1, 16) == permit and live(mine)) then
  local all, holders, soonest = call('HGETALL', lock), 0, nil
  for i = 1, #all, 2 do
    if all[i] ~= pod then
      if live(all[i + 1]) then
        holders = holders + 1
        local till = tonumber(sub(all[i + 1], 17, 29))
        if not soonest or till < soonest then soonest = till end
      else ended[#ended + 1] = all[i] end
    end
  end
  if holders >= tonumber(ARGV[9]) then return { 'NOT_HOLDER', stamp, soonest } end
end
end
local running = tonumber(call('HGET', counts, 'running') or 0)
local plan_at = 29 + 3 * tonumber(ARGV[28])
local limits_at = plan_at + 2 + tonumber(ARGV[plan_at + 1])
-- A visit looks at what it is about to write, and no further: most find little to do.
local function need_move()
  need('stream', 'events')
  need_all('hash', 'run', 'at', 'tries', 'tally')
  need_all('zset', 'agenda', 'dead')
  need_recent()
end
local function need_grant()
  need('stream', 'events')
  need_all('hash', 'run', 'at')
  if #ARGV > limits_at + 1 then need('hash', 'tally') end
  need('zset', 'leases')
  need('string', lease_name(lnow + dispatch_ms))
end
local function need_choice()
  need_grant()
  need_all('zset', 'agenda', 'ring:0', 'ring:1', 'ring:2', 'ring:3', 'ring:4', 'ring:5')
  need('set', 'parked')
end
for _, gone in ipairs(ended) do
  call('HDEL', lock, gone)
  call('DEL', P .. 'last:' .. gone)
end
if not meta[10] then call('HSET', KEYS[1], 'v', '1') end

local function permit_put(wake) call('HSET', lock, pod, permit .. format('%013.0f%013.0f', now + lock_ms, wake)) end

-- A repeated call: what it was granted and still holds is answered again.
need('string', 'last:' .. pod)
do
local last = call('GET', P .. 'last:' .. pod)
if last and sub(last, 1, 16) == ARGV[4] then
  local out = { 'OK', stamp, -1, 1, 0, 0, 0, clock, 0 }
  for i = 27, #last, 16 do
    local id = sub(last, i, i + 15)
    local r = call('HGET', run, id)
    if r and sub(run_grant(r), 9) == sub(last, 17, 26) then
      local spec = call('HGET', P .. 'task:' .. shelf(id), id)
      if spec then
        local at = at_of(id, spec)
        out[#out + 1] = id .. run_lane(r) .. run_grant(r) .. format('%013.0f%02x', at.due, at.failures)
        out[#out + 1] = spec
      end
    end
  end
  permit_put(0)
  return out
end
end

local delta, rares = {}, {}
local function count(name, n) delta[name] = (delta[name] or 0) + n end
local function tell()
  if #rares > 0 then emit('v', pod, table.concat(rares)) end
  rares = {}
end
local function flush()
  for name, d in pairs(delta) do
    if d ~= 0 then call('HINCRBY', counts, name, d) end
  end
  tell()
end
-- Where a key of another type is met on the way, the tasks moved so far are accounted for; the one in hand has not moved.
local function safely(f, ...)
  local ok, answer, more = pcall(f, ...)
  if ok then return answer, more end
  flush()
  -- The server's pcall gives the text of an error; thrown as it is, it would get a place and another code.
  if type(answer) == 'string' then answer = { err = string.find(answer, '^%u+ ') and answer or 'ERR ' .. answer } end
  error(answer)
end

-- A leap ahead of the caller's monotonic clock pauses reaping for one lease: the renewals were not late, the clock was.
-- So does, for a moment, coming back to where work was left and nobody has been for longer than a permit lasts: what kept
-- the pods away kept outcomes and renewals away as well.
local leap, pause = 0, tonumber(meta[5] or 0)
if ARGV[13] ~= '' then
  local AWAY_MS, RETURN_MS = 2000, 4000
  local off, away, till = now - (tonumber(ARGV[13]) or now), lnow - clock, 0
  if off > 5000 or off < -5000 then leap = off end
  if off > 5000 then till = lnow + lease_ms
  elseif running > 0 and clock > 0 and away > AWAY_MS and away > lock_ms then till = lnow + RETURN_MS end
  if till > pause then
    pause = till
    call('HSET', KEYS[1], 'pause', format('%.0f', pause))
  end
end
if skew ~= skew_was then call('HSET', KEYS[1], 'clock', format('%.0f', lnow), 'skew', format('%.0f', skew))
elseif lnow > clock then call('HSET', KEYS[1], 'clock', format('%.0f', lnow)) end

-- 1. Leases that lapsed.
-- (Blocks keep the number of names below the 200 that Lua allows in a function.)
local reaped = 0
do
-- Ids that are looked at; a string counts for some, however few it names.
local REAP, LOOKS, LEAST = 250, 4000, 32
local lapsed = {}
local function lapse(id, r)
  if lapsed[id] then return end
  need_move()
  need('hash', 'task:' .. shelf(id))
  local spec, grant, holder = call('HGET', P .. 'task:' .. shelf(id), id), run_grant(r), run_holder(r)
  if not spec then
    -- dropped below
  elseif run_cancelled(r) then need_end(id, spec)
  elseif run_phase(r) == 's' then need_fail(id, spec, false, nil, tonumber(ARGV[14]))
  elseif run_losses(r) + 1 >= 20 then
    need('hash', 'dead:' .. id)
    need_end(id, spec)
  else need_back(id, spec) end
  lapsed[id] = true
  reaped = reaped + 1
  count('running', -1)
  if not spec then
    call('HDEL', run, id)
    tally_end(id, spec, r)
    count('deleted', 1)
    rares[#rares + 1] = rare(id, grant, 'F', 0, 'running without a spec: dropped')
  elseif run_cancelled(r) then
    call('HDEL', run, id)
    tally_end(id, spec, r)
    finish(id, spec, 'C', sub(grant, 1, 8), 'cancelled while running')
    count('cancelled', 1)
    rares[#rares + 1] = rare(id, grant, 'C', 0, 'cancelled while running; ' .. holder .. ' did not answer')
  elseif run_phase(r) == 's' then
    local to, due = fail(id, r, spec, 'lease lapsed: ' .. holder .. ' neither renewed nor answered', 'lease_expired', false, nil, tonumber(ARGV[14]))
    count(to == 'D' and 'dead' or 'pending', 1)
    rares[#rares + 1] = rare(id, grant, to, due, 'lease lapsed at ' .. holder)
  else
    local losses = run_losses(r) + 1
    if losses >= 20 then
      local at = at_of(id, spec)
      bury(id, r, spec, at, 'lost_unstarted', tries_add(id, attempt(grant, holder, 'handed out 20 times and never started')), 'handed out 20 times and never started')
      count('dead', 1)
      rares[#rares + 1] = rare(id, grant, 'D', 0, 'handed out 20 times and never started')
    else
      hand_back(id, r, spec, losses)
      count('pending', 1)
      rares[#rares + 1] = rare(id, grant, 'L', 0, (run_phase(r) == 'o' and 'offered to ' or 'claimed by ') .. holder .. ', never started, handed back')
    end
  end
end
do
  -- `leases` lists the times that have a string; the first may have been read in part.
  local strings = lnow < pause and {} or call('ZRANGE', leases, '-inf', format('%.1f', floor(lnow / 100) / 10), 'BYSCORE', 'LIMIT', 0, 120)
  if running == 0 and #strings > 0 then
    for i, s in ipairs(strings) do strings[i] = P .. 'lease:' .. s end
    call('UNLINK', unpack(strings))
    call('ZREMRANGEBYRANK', leases, 0, #strings - 1)
  else
    local looks = 0
    for _, s in ipairs(strings) do
      local name, from = 'lease:' .. s, meta[2] == s and tonumber(meta[3]) or 0
      local len, offset = safely(need, 'string', name), from
      while offset < len and reaped < REAP and looks < LOOKS do
        local piece, ids = call('GETRANGE', P .. name, offset, offset + 16 * REAP - 1), {}
        for i = 1, #piece, 16 do ids[#ids + 1] = sub(piece, i, i + 15) end
        local found = call('HMGET', run, unpack(ids))
        for i = 1, #ids do
          if found[i] and run_deadline(found[i]) <= lnow then safely(lapse, ids[i], found[i]) end
        end
        offset, looks = offset + #piece, looks + math.max(#ids, LEAST)
      end
      if offset < len then
        if offset ~= from then call('HSET', KEYS[1], 'reap', s, 'reapoff', offset) end
        break
      end
      call('UNLINK', P .. name)
      call('ZREM', leases, s)
    end
  end
  -- Once a second a piece of `run` itself, for leases that no string names.
  if running > 0 and lnow >= pause and lnow - tonumber(meta[7] or 0) >= 1000 then
    local piece = call('HSCAN', run, meta[8] or '0', 'COUNT', 50)
    for i = 1, #piece[2], 2 do
      if reaped < REAP and run_deadline(piece[2][i + 1]) <= lnow - 2000 then safely(lapse, piece[2][i], piece[2][i + 1]) end
    end
    call('HSET', KEYS[1], 'scanat', format('%013.0f', lnow), 'scan', piece[1])
  end
end
end

-- Tasks of frozen plans are set aside in `held:<plan>`, still pending; those of thawed ones come back to where their
-- due time says, a stretch a visit.
local frozen, again, cut, aside = nil, false, false, 0
for i = plan_at + 2, limits_at - 1 do
  frozen = frozen or {}
  frozen[ARGV[i]] = true
end
do
local THAW, PLANS = 500, 256
local function come_back(plan, most)
  local key = P .. 'held:' .. plan
  need('zset', 'held:' .. plan)
  need('zset', 'agenda')
  local got = call('ZRANGE', key, 0, most - 1, 'WITHSCORES')
  for i = 1, #got, 2 do need_due(sub(got[i], 1, 16), tonumber(got[i + 1]), sub(got[i], 17, 20)) end
  for i = 1, #got, 2 do due_put(sub(got[i], 1, 16), tonumber(got[i + 1]), sub(got[i], 17, 20)) end
  call('ZREMRANGEBYRANK', key, 0, #got / 2 - 1)
  count('held', -#got / 2)
  if call('EXISTS', key) == 0 then call('ZREM', P .. 'helds', plan) end
  return #got / 2
end
if meta[11] and meta[12] ~= ARGV[plan_at] then
  safely(need, 'zset', 'helds')
  local plans, left = call('ZRANGE', P .. 'helds', 0, PLANS), THAW
  for _, plan in ipairs(plans) do
    if left > 0 and not (frozen and frozen[plan]) then left = left - safely(come_back, plan, left) end
  end
  cut = left == 0 or #plans > PLANS
  again = cut
  if call('EXISTS', P .. 'helds') == 0 then
    cut = false
    call('HDEL', KEYS[1], 'held', 'heldsig')
  elseif not cut then call('HSET', KEYS[1], 'heldsig', ARGV[plan_at]) end
end
end

-- Rules of placement keys: who waited and may go comes back to where its due time says.
do
local from = string.find(ARGV[limits_at], ';', 1, true)
if from or meta[15] then
  turns().rules(from and sub(ARGV[limits_at], from + 1) or '')
  -- These tasks take longer.
  if from then limit, normal_limit = limit < 500 and limit or 500, normal_limit < 500 and normal_limit or 500 end
  safely(turns().need)
end
if meta[15] then safely(turns().come, need_due, due_put) end
end

-- 2. What the agenda says is due: due sets, timers, keys whose window ended.
local minute, sets = floor(now / 60000), nil
do
local names = call('ZRANGE', agenda, '-inf', minute, 'BYSCORE', 'LIMIT', 0, MOST.sets)
if #names == MOST.sets then
  local seen = {}
  for _, name in ipairs(names) do seen[name] = true end
  for _, name in ipairs(call('ZRANGE', agenda, minute, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, MOST.new_sets)) do
    if not seen[name] then names[#names + 1] = name end
  end
end
local function expire(key, id)
  need_move()
  need('hash', 'task:' .. shelf(id))
  local spec, r = call('HGET', P .. 'task:' .. shelf(id), id), call('HGET', run, id)
  local at = spec and at_of(id, spec)
  if spec then
    need_end(id, spec)
    if not r then need_place(id, at.due, at.lane, spec) end
  end
  call('ZREM', key, id)
  if not spec then return end
  local grant, gone = NO_GRANT, nil
  if r then
    grant = run_grant(r)
    gone = call('HDEL', run, id) == 1
    if gone then
      count('running', -1)
      tally_end(id, spec, r)
    end
  else
    gone = unplace(id, at.due, at.lane, spec)
    if gone then count('pending', -1) end
  end
  if gone then
    finish(id, spec, 'X', grant == NO_GRANT and at.fence or sub(grant, 1, 8), 'its total time-out passed')
    count('expired', 1)
    rares[#rares + 1] = rare(id, grant, 'X', 0, 'its total time-out passed')
  end
end
local urgent, normal = {}, {}
for _, name in ipairs(names) do
  local kind = sub(name, 1, 1)
  if kind == 't' then
    local key = P .. 'timer:' .. sub(name, 2)
    safely(need, 'zset', 'timer:' .. sub(name, 2))
    for _, id in ipairs(call('ZRANGE', key, '-inf', now, 'BYSCORE', 'LIMIT', 0, 50)) do safely(expire, key, id) end
    if call('EXISTS', key) == 0 then call('ZREM', agenda, name) end
  elseif kind == 'k' then
    safely(need, 'string', 'keyend:' .. sub(name, 2))
    local key, field = P .. 'keyend:' .. sub(name, 2), 'at' .. name
    local off = tonumber(call('HGET', KEYS[1], field) or 0)
    local piece, i, n = call('GETRANGE', key, off, off + 65535), 1, 0
    while n < 200 and i + 3 <= #piece do
      local len = tonumber(sub(piece, i + 2, i + 3))
      if i + 3 + len > #piece then break end
      local keys, k = P .. 'keys:' .. tonumber(sub(piece, i, i + 1)), sub(piece, i + 4, i + 3 + len)
      safely(need, 'hash', sub(keys, #P + 1))
      local v = call('HGET', keys, k)
      if v and (key_values().till(v) or now + 1) <= now then call('HDEL', keys, k) end
      i, n = i + 4 + len, n + 1
    end
    if n == 0 then
      call('UNLINK', key)
      call('HDEL', KEYS[1], field)
      call('ZREM', agenda, name)
    else
      call('HSET', KEYS[1], field, off + i - 1)
    end
  else
    local some
    for _, set in ipairs(due_sets(name)) do
      -- What lapsed or was thawed just now may be the first in its set.
      if safely(need, 'zset', 'due:' .. set) > 0 or ((reaped > 0 or meta[11] or meta[15]) and call('EXISTS', P .. 'due:' .. set) == 1) then
        local kind_ = string.find(set, 'u', 1, true) and urgent or normal
        kind_[#kind_ + 1] = set
        some = true
      end
    end
    if not some then call('ZREM', agenda, name) end
  end
end
sets = urgent
for _, name in ipairs(normal) do sets[#sets + 1] = name end
end
-- The look-ahead may reach into the next minute; its timers and keys wait until then.
local till = now + tonumber(ARGV[27])
if floor(till / 60000) > minute then
  for _, name in ipairs(call('ZRANGE', agenda, minute + 1, floor(till / 60000), 'BYSCORE', 'LIMIT', 0, MOST.new_sets)) do
    local kind = sub(name, 1, 1)
    for _, set in ipairs(kind ~= 't' and kind ~= 'k' and due_sets(name) or {}) do
      if safely(need, 'zset', 'due:' .. set) > 0 then sets[#sets + 1] = set end
    end
  end
end

-- 3. Old ids of finished tasks, old dead letters, old events: a few each visit.
if now - tonumber(meta[14] or 0) >= KEEP then call('HSET', KEYS[1], 'kept', now13) end
do
do
  local ten, olden = recent_ten(), {}
  for _, t in ipairs(call('ZRANGE', P .. 'recents', '-inf', ten - 12, 'BYSCORE', 'LIMIT', 0, 100)) do
    if tonumber(t) > ten - 90 and safely(need, 'string', 'recent:' .. t) <= 53770 then break end
    olden[#olden + 1] = P .. 'recent:' .. t
  end
  if #olden > 0 then
    call('UNLINK', unpack(olden))
    call('ZREMRANGEBYRANK', P .. 'recents', 0, #olden - 1)
  end
  local over = call('ZCARD', P .. 'dead') - tonumber(ARGV[17])
  local olds = call('ZRANGE', P .. 'dead', '-inf', now - tonumber(ARGV[16]), 'BYSCORE', 'LIMIT', 0, 16)
  if #olds == 0 and over > 0 then olds = call('ZRANGE', P .. 'dead', 0, over > 16 and 15 or over - 1) end
  if #olds > 0 then safely(need_move) end
  for _, id in ipairs(olds) do
    safely(need, 'hash', 'task:' .. shelf(id))
    safely(sized)
    call('ZREM', P .. 'dead', id)
    call('UNLINK', P .. 'dead:' .. id)
    specs_drop(shelf(id), { id })
    call('HDEL', P .. 'at', id)
    count('dead', -1)
    count('deleted', 1)
    rares[#rares + 1] = rare(id, NO_GRANT, 'Z', 0, 'kept for its time')
  end
  local bytes_over = tonumber(meta[4] or 0) - tonumber(ARGV[15])
  if bytes_over > 0 then
    safely(need, 'hash', 'cut')
    -- An entry may have a batch's records, and all that is read becomes strings here: so the first says how many more.
    local left, freed, till, moves, work, want = 64, 0, nil, {}, 0, 1
    while want > 0 do
      local old, before = call('XRANGE', P .. 'events', till and '(' .. till or '-', '+', 'COUNT', want), freed
      for _, e in ipairs(old) do
        local kind, r = e[2][2], e[2][6]
        work = work + count_moves(kind, r, moves)
        freed = freed + #r + 96
        till, left = e[1], left - 1
        if freed >= bytes_over or work > 8000 then break end
      end
      if #old < want or freed >= bytes_over or work > 8000 then break end
      want = math.min(left, math.ceil((bytes_over - freed) * want / (freed - before)))
    end
    if till then
      call('XTRIM', P .. 'events', 'MINID', till)
      call('XDEL', P .. 'events', till)
      call('HINCRBY', KEYS[1], 'evb', -freed)
      call('HSET', KEYS[1], 'evtrim', till)
      for letter, n in pairs(moves) do call('HINCRBY', P .. 'cut', letter, n) end
    end
  end
end
end

-- 4. Candidates: the ripe heads of the due sets, urgent ones first. Their times are asked for only where
-- they are needed, to ripen: a score costs the server more than a member.
local ready = tonumber(call('HGET', counts, 'ready') or 0)
local ready_before = ready
local pool, taken, truncated, lanes, order, bound
local function look(timed, until_ms, which)
  -- Without times it only looks whether all may go straight through: twice as far as that can be.
  local most = (timed or limit >= MOST.ripen / 2) and MOST.ripen or (limit > MOST.ripen / 8 and 2 * limit or MOST.ripen / 4)
  -- Whatever waits already: what is due later must not wait behind it until all of it has had its turn.
  local budget, left = most, #which
  if limit == 0 then budget = 0 end
  pool, taken, truncated, lanes, order, bound = {}, {}, false, {}, {}, {}
  local step = timed and 2 or 1
  -- Reads on in a set, for so many at most.
  local function see(t, cap)
    local key, got = P .. 'due:' .. t.name, nil
    if timed then got = call('ZRANGE', key, '-inf', until_ms, 'BYSCORE', 'LIMIT', t.n, cap, 'WITHSCORES')
    else got = call('ZRANGE', key, '-inf', until_ms, 'BYSCORE', 'LIMIT', t.n, cap) end
    local n = #got / step
    t.cut = n == cap
    budget = budget - n
    local lane, l
    for i = 1, #got, step do
      local member = got[i]
      local code = sub(member, 17, 20)
      if code ~= lane then
        lane, l = code, lanes[code]
        if not l then
          l = { lane = lane, group = sub(lane, 1, 3), level = level(lane), n = 0 }
          lanes[lane] = l
          order[#order + 1] = l
        end
      end
      local k = l.n + 1
      l.n = k
      if timed then l[2 * k - 1], l[2 * k] = got[i + 1], sub(member, 1, 16) end
    end
    if t.n > 0 then
      local before = pool[t.at]
      for i = 1, #got do before[#before + 1] = got[i] end
    elseif n > 0 then
      t.at = #pool + 1
      pool[t.at], taken[t.at] = got, t
    end
    t.n = t.n + n
  end
  local cuts = 0
  for _, name in ipairs(which) do
    local cap = math.ceil(budget / left)
    left = left - 1
    if cap > 0 then
      local t = { name = name, n = 0 }
      see(t, cap)
      if t.cut then cuts = cuts + 1 end
    end
  end
  -- What the sets in which little is ripe leave over goes to those in which more is.
  if cuts > 0 and budget > 0 then
    for _, t in ipairs(taken) do
      if t.cut then
        local cap = math.ceil(budget / cuts)
        cuts = cuts - 1
        if cap > 0 then see(t, cap) end
      end
    end
  end
  for p, t in ipairs(taken) do
    if t.cut then
      truncated = true
      local got = pool[p]
      local last_due = timed and tonumber(got[#got])
      for i = 1, timed and #got or 0, step do
        local lane = sub(got[i], 17, 20)
        if not bound[lane] or last_due < bound[lane] then bound[lane] = last_due end
      end
    end
  end
end

local chosen, chosen_n, from_lane, backlog, some = {}, 0, {}, 0, nil
local purses, rules, counted, tallies = {}, nil, {}, nil
do
-- Quotas by queue: a default and exceptions.
local quotas = {}
for i = 29, 26 + 3 * tonumber(ARGV[28]), 3 do quotas[ARGV[i]] = { tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]) } end
-- Limits: purses that lanes share, and which lanes pay from which. Most claims have none.
local no_retries, closed = sub(ARGV[limits_at], 1, 1) == '1', string.match(ARGV[limits_at], '^.([^;]*)')
-- Looked for by halves: they may be thousands, and few lanes are in sight.
local function is_closed(group)
  local low, high = 0, #closed / 3 - 1
  while low <= high do
    local mid = floor((low + high) / 2)
    local here = sub(closed, 3 * mid + 1, 3 * mid + 3)
    if here == group then return true end
    if here < group then low = mid + 1 else high = mid - 1 end
  end
  return false
end
for group in pairs(closed ~= '' and quotas or {}) do
  if is_closed(group) then quotas[group] = { -1, -1 } end
end
local function tier(lane) return digit(sub(lane, 4, 4)) % 8 end
if #ARGV > limits_at + 1 then
  local good = ARGV[limits_at + 1] == '' or now <= tonumber(ARGV[limits_at + 1])
  local groups, at, fields = ARGV[limits_at + 2], limits_at + 3, {}
  for i = 1, #groups, 3 do
    local group = sub(groups, i, i + 2)
    counted[#counted + 1] = group
    counted[group] = #counted
    for _, letter in ipairs({ 'r', 's', 'f' }) do fields[#fields + 1] = group .. letter end
  end
  if #fields > 0 then tallies = call('HMGET', P .. 'tally', unpack(fields)) end
  local kinds = {}
  for p = 1, tonumber(ARGV[at]) do
    local kind, amount = ARGV[at + 2 * p - 1], tonumber(ARGV[at + 2 * p])
    purses[p] = { n = (kind == 't' and amount > 0 and not good) and 0 or amount, spent = 0, denied = 0 }
    kinds[p] = kind
  end
  at = at + 1 + 2 * #purses
  rules = {}
  for r = 1, tonumber(ARGV[at]) do
    local rule, p = ARGV[at + 2 * r - 1], tonumber(ARGV[at + 2 * r])
    local group = sub(rule, 1, 3)
    local by_tier = rules[group] or {}
    rules[group] = by_tier
    if kinds[p] == 'r' and counted[group] then
      purses[p].n = purses[p].n - tonumber(tallies[3 * counted[group] - 2] or 0)
    end
    for t = 0, 6 do
      if sub(rule, 4 + t, 4 + t) == '1' then
        by_tier[t] = by_tier[t] or {}
        table.insert(by_tier[t], purses[p])
      end
    end
  end
  for p, purse in ipairs(purses) do
    if kinds[p] == 'r' and purse.n < 0 then purse.n = 0 end
  end
end
-- What a lane pays from, if it is limited.
local function paying(l)
  local by_tier = rules and rules[l.group]
  return by_tier and by_tier[tier(l.lane)]
end
local function quota(l)
  local q = quotas[l.group]
  if not q then
    q = closed ~= '' and is_closed(l.group) and { -1, -1 } or { tonumber(ARGV[24]), tonumber(ARGV[25]) }
    quotas[l.group] = q
  end
  local most = l.level < 2 and q[1] or q[2]
  if no_retries and tier(l.lane) > 0 then most = -1 end
  for _, purse in ipairs(paying(l) or {}) do
    if purse.n < most then most = purse.n end
  end
  return most, q
end
-- Whether a lane is kept back by a limit; all that it pays from are told how much is.
local function denied(l, n)
  local own, by = paying(l) or {}, nil
  for _, purse in ipairs(own) do by = by or purse.n <= 0 end
  for _, purse in ipairs(by and own or {}) do purse.denied = purse.denied + n end
  return by
end
local function spend(l, n)
  for _, purse in ipairs(paying(l) or {}) do
    purse.n = purse.n - n
    purse.spent = purse.spent + n
  end
  local _, q = quota(l)
  q[1] = q[1] - n
  if l.level >= 2 then q[2] = q[2] - n normal_limit = normal_limit - n end
  limit = limit - n
end

-- 5. Choice: straight through where everything ripe may go, else by weight and in turn.
-- Large specs: the batch ends where its bytes would pass the cap.
local big = limit * tonumber(meta[9] or 0) > tonumber(ARGV[8])
-- Lanes that a limit kept back return when it has something for them.
if rules and ready > 0 and call('EXISTS', P .. 'parked') == 1 then
  for group, by_tier in pairs(rules) do
    local lanes_of = {}
    for t in pairs(by_tier) do
      for p = 0, 5 do lanes_of[#lanes_of + 1] = group .. sub(DIGITS, 8 * p + t + 1, 8 * p + t + 1) end
    end
    for i, stands in ipairs(call('SMISMEMBER', P .. 'parked', unpack(lanes_of))) do
      local lane = lanes_of[i]
      if stands == 1 and not denied({ lane = lane, group = group }, call('ZCARD', P .. 'ready:' .. lane)) then
        call('ZADD', P .. 'ring:' .. level(lane), 'NX', 0, lane)
        call('SREM', P .. 'parked', lane)
      end
    end
  end
end
-- A backlog that stands aside holds nobody up, unless it may come back now.
local straight = not big and not frozen and (ready == 0 or (
  call('EXISTS', P .. 'ring:0', P .. 'ring:1', P .. 'ring:2', P .. 'ring:3', P .. 'ring:4', P .. 'ring:5') == 0
  and (meta[6] == ARGV[26] or call('EXISTS', P .. 'parked') == 0)))
-- Whether all that is due by `until_ms` may go, or `some` of it.
local function purses_back()
  for _, purse in ipairs(purses) do purse.n, purse.spent = purse.n + purse.spent, 0 end
end
local function all_go(until_ms, which, kept)
  look(false, until_ms, which)
  purses_back()
  local total, low, fits = 0, 0, not truncated
  local left_any, left_normal = {}, {}
  for _, l in ipairs(order) do
    local _, q = quota(l)
    local a = (left_any[l.group] or q[1]) - l.n
    left_any[l.group] = a
    total = total + l.n
    if l.level >= 2 then
      low = low + l.n
      local b = (left_normal[l.group] or q[2]) - l.n
      left_normal[l.group] = b
      if b < 0 then fits = false end
    end
    if a < 0 or (no_retries and tier(l.lane) > 0) then fits = false end
    for _, purse in ipairs(paying(l) or {}) do
      purse.n = purse.n - l.n
      purse.spent = purse.spent + l.n
      if purse.n < 0 then fits = false end
    end
  end
  fits = fits and total <= limit - kept and low <= normal_limit
  -- Of a single lane in sight the oldest may go straight through too, where they are no small part of what is seen:
  -- there is nobody to whom they would have to give way.
  local l = order[1]
  if not fits and which == sets and l and not order[2] and until_ms <= now and not rules and not no_retries then
    local n = quota(l)
    if n > limit then n = limit end
    if l.level >= 2 and n > normal_limit then n = normal_limit end
    if n > total then n = total end
    -- By due time they are only in sets of whole minutes, one after the other.
    local whole = true
    for _, t in ipairs(taken) do whole = whole and not string.find(t.name, '.', 1, true) end
    if n > 0 and 2 * n >= total and (whole or not taken[2]) then
      fits, some, backlog = true, n, total - n
    end
  end
  return fits
end
straight = straight and ((till > now and all_go(till, sets, 0)) or all_go(now, sets, 0))
if straight then
  if #pool > 0 then safely(need_grant) end
  if some then
    local old_pool, old_taken = pool, taken
    pool, taken = {}, {}
    for p, t in ipairs(old_taken) do
      pool[p], taken[p] = old_pool[p], t
      if t.n > some then
        t.n = some
        pool[p] = { unpack(old_pool[p], 1, some) }
      end
      some = some - t.n
      -- What comes after the part of a set that was seen is older than the next set.
      if some == 0 or t.cut then break end
    end
  end
  chosen = pool[1] or chosen
  chosen_n = #chosen
  for p = 2, #pool do
    for _, member in ipairs(pool[p]) do
      chosen_n = chosen_n + 1
      chosen[chosen_n] = member
    end
  end
else
  safely(need_choice)
  local round, shares = limit, call('HMGET', counts, 'deficit0', 'deficit1', 'deficit2', 'deficit3', 'deficit4', 'deficit5')
  -- Urgent ones that all fit go at once and ahead of their time, as they do where nothing waits, unless others of them
  -- wait already or the room is owed to others.
  local went, first = {}, {}
  do
  local urgents, others, kept = {}, {}, 0
  for _, name in ipairs(sets) do
    local kind = string.find(name, 'u', 1, true) and urgents or others
    kind[#kind + 1] = name
  end
  if #urgents > 0 and not big and not frozen and call('EXISTS', P .. 'ring:0', P .. 'ring:1') == 0
    and (meta[6] == ARGV[26] or call('EXISTS', P .. 'parked') == 0) then
    for p = 2, 5 do
      local share = floor(tonumber(shares[p + 1] or 0))
      if share > 0 then kept = kept + share end
    end
    if kept > normal_limit then kept = normal_limit end
    if (till > now and all_go(till, urgents, kept)) or all_go(now, urgents, kept) then
      for _, l in ipairs(order) do
        local _, q = quota(l)
        q[1] = q[1] - l.n
        limit = limit - l.n
        went[l.level] = (went[l.level] or 0) + l.n
      end
      for _, got in ipairs(pool) do
        for _, member in ipairs(got) do
          chosen_n = chosen_n + 1
          chosen[chosen_n] = member
        end
      end
      first, sets = taken, others
    else purses_back() end
  else purses_back() end
  end
  look(true, now, sets)
  -- Ripen: what was read moves into its lane. The due set gives it up after the lane has it.
  for _, l in ipairs(order) do safely(need, 'zset', 'ready:' .. l.lane) end
  for _, l in ipairs(order) do
    local added, key = 0, P .. 'ready:' .. l.lane
    for i = 1, 2 * l.n, 4000 do
      added = added + call('ZADD', key, unpack(l, i, i + 3999 < 2 * l.n and i + 3999 or 2 * l.n))
    end
    ready = ready + added
    count('ready', added)
    if call('SISMEMBER', P .. 'parked', l.lane) == 0 then call('ZADD', P .. 'ring:' .. l.level, 'NX', 0, l.lane) end
  end
  for _, t in ipairs(taken) do
    call('ZREMRANGEBYRANK', P .. 'due:' .. t.name, 0, t.n - 1)
    if call('EXISTS', P .. 'due:' .. t.name) == 0 then unlist(t.name) end
  end
  taken = first
  -- Lanes that stood aside come back when the set of zero quotas has changed.
  if meta[6] ~= ARGV[26] then
    for _, lane in ipairs(call('SPOP', P .. 'parked', 200)) do call('ZADD', P .. 'ring:' .. level(lane), 'NX', 0, lane) end
    if call('EXISTS', P .. 'parked') == 0 then call('HSET', KEYS[1], 'sig', ARGV[26]) end
  end
  local bytes, turn = tonumber(ARGV[8]), tonumber(call('HGET', counts, 'turn') or 0)
  local rings, weights, sum, waits = {}, {}, 0, {}
  for p in pairs(went) do sum = sum + string.match(ARGV[18 + p], '^%d+') end
  do
  -- A priority weighs what its lanes do on average, since a queue may have weights of its own, and more the longer
  -- its oldest task has waited for its turn, up to sixteenfold.
  local function weigh(p, ring)
    local base, age, own = string.match(ARGV[18 + p], '^(%d+)%+(%d+)(.*)$')
    if not base then return tonumber(ARGV[18 + p]) end
    local mine, oldest, all = {}, now, 0
    for group, weight in string.gmatch(own, ';(...)(%d+)') do mine[group] = tonumber(weight) end
    age = tonumber(age)
    for _, l in ipairs(ring) do
      l.weight = mine[l.group] or tonumber(base)
      all = all + l.weight
      local head = age > 0 and call('ZRANGE', P .. 'ready:' .. l.lane, 0, 0, 'WITHSCORES')
      if head and head[2] and tonumber(head[2]) < oldest then oldest = tonumber(head[2]) end
    end
    ring.weight = all
    local times = age > 0 and 1 + floor((now - oldest) / age) or 1
    return all / #ring * (times > 16 and 16 or times)
  end
  for p = 0, 5 do
    local ring = {}
    for _, lane in ipairs(call('ZRANGE', P .. 'ring:' .. p, 0, MOST.lanes - 1)) do
      local l = lanes[lane] or { lane = lane, group = sub(lane, 1, 3), level = p, n = 0 }
      safely(need, 'zset', 'ready:' .. lane)
      l.all = call('ZCARD', P .. 'ready:' .. lane)
      -- After a leap back some of what was ripe is not.
      l.size = now < clock and call('ZCOUNT', P .. 'ready:' .. lane, '-inf', now) or l.all
      l.used = 0
      if l.all == 0 then call('ZREM', P .. 'ring:' .. p, lane)
      elseif quota(l) < 0 or (quota(l) == 0 and denied(l, l.size)) then
        call('ZREM', P .. 'ring:' .. p, lane)
        call('SADD', P .. 'parked', lane)
      elseif l.size == 0 then
        -- nothing ripe in it now
      elseif quota(l) > 0 then ring[#ring + 1] = l
      else
        waits[p] = true
        backlog = backlog + l.size
      end
    end
    rings[p] = ring
    if #ring > 0 then
      weights[p] = weigh(p, ring)
      sum = sum + weights[p]
    end
  end
  end
  local full = false
  -- Sets aside what is of a frozen plan before it is chosen, so that it holds nobody up; answers the others.
  local sifted, sift_bytes = 0, 2 * bytes
  local function sift(l, got)
    local kept, key = {}, P .. 'ready:' .. l.lane
    for _, id in ipairs(got) do
      if sifted >= MOST.sift or sift_bytes <= 0 then
        again, full = true, true
        break
      end
      safely(need, 'hash', 'task:' .. shelf(id))
      local spec = call('HGET', P .. 'task:' .. shelf(id), id)
      sifted, sift_bytes = sifted + 1, sift_bytes - (spec and #spec or 0)
      local plan = plan_of(spec)
      if plan and frozen[plan] then
        safely(need_all, 'zset', 'helds', 'held:' .. plan)
        call('ZADD', P .. 'held:' .. plan, call('ZSCORE', key, id), id .. l.lane)
        call('ZADD', P .. 'helds', 0, plan)
        call('ZREM', key, id)
        aside, l.all, l.size = aside + 1, l.all - 1, l.size - 1
      else
        kept[#kept + 1] = id
      end
    end
    if l.all == 0 then call('ZREM', P .. 'ring:' .. l.level, l.lane) end
    return kept
  end
  local function take(l, n)
    local q = quota(l)
    if n > q then n = q end
    if l.level >= 2 and n > normal_limit then n = normal_limit end
    if n > limit then n = limit end
    if n <= 0 or full then return 0 end
    local key, got = P .. 'ready:' .. l.lane, nil
    local b = bound[l.lane]
    if now < clock and not (b and b < now) then b = now end
    local m, lane, read = 0, l.lane, 0
    repeat
      local want = n - m
      if b then got = call('ZRANGE', key, '-inf', b, 'BYSCORE', 'LIMIT', l.used + m, want)
      else got = call('ZRANGE', key, l.used + m, l.used + n - 1) end
      read = #got
      if frozen then got = sift(l, got) end
      for _, id in ipairs(got) do
        if big then
          safely(need, 'hash', 'task:' .. shelf(id))
          bytes = bytes - call('HSTRLEN', P .. 'task:' .. shelf(id), id)
          if bytes < 0 and chosen_n > 0 then full = true break end
        end
        chosen_n = chosen_n + 1
        chosen[chosen_n] = id .. lane
        m = m + 1
      end
    until not frozen or full or read < want or m == n
    l.used = l.used + m
    spend(l, m)
    return m
  end
  local function serve(ring, want)
    local served = 0
    -- Divided is what there is room for: more would be all for the first of them.
    local room = ring[1] and ring[1].level >= 2 and normal_limit < limit and normal_limit or limit
    if want > room then want = room end
    while want > 0 do
      local chunk, before = math.ceil(want / #ring), want
      for _, l in ipairs(ring) do
        if want <= 0 then break end
        local mine = l.weight and math.ceil(before * l.weight / ring.weight) or chunk
        local m = take(l, mine < want and mine or want)
        want, served = want - m, served + m
      end
      if want == before then break end
    end
    return served
  end
  local owed = {}
  for p = 0, 5 do
    if weights[p] then
      owed[p] = round * weights[p] / sum + tonumber(shares[p + 1] or 0)
      if owed[p] >= 1 then owed[p] = owed[p] - serve(rings[p], floor(owed[p])) end
    end
  end
  for p = 0, 5 do
    if weights[p] and limit > 0 then owed[p] = owed[p] - serve(rings[p], limit) end
  end
  for p = 0, 5 do
    -- At most one round is owed or owing, where rounds are small some of them; nothing where no task waits.
    local rest, most = waits[p] and tonumber(shares[p + 1] or 0) or 0, round > 8 and round or 8
    if weights[p] then
      local backlogged = waits[p]
      for _, l in ipairs(rings[p]) do
        if l.used > 0 then
          turn = turn + 1
          if l.used < l.size then call('ZADD', P .. 'ring:' .. p, turn, l.lane) end
        end
        if rules and l.used < l.size and denied(l, l.size - l.used) then
          call('ZREM', P .. 'ring:' .. p, l.lane)
          call('SADD', P .. 'parked', l.lane)
          l.aside = true
        end
        if l.used < l.size and not l.aside then backlogged = true end
      end
      if backlogged then rest = owed[p] > most and most or (owed[p] < -most and -most or owed[p]) end
    end
    if rest ~= tonumber(shares[p + 1] or 0) then call('HSET', counts, 'deficit' .. p, format('%.3f', rest)) end
  end
  if turn > 0 then call('HSET', counts, 'turn', turn) end
  for p = 0, 5 do
    for _, l in ipairs(rings[p]) do
      if l.used > 0 then from_lane[#from_lane + 1] = l end
      if not l.aside then backlog = backlog + l.size - l.used end
    end
  end
end

if aside > 0 then
  count('ready', -aside)
  count('held', aside)
  if not cut then call('HSET', KEYS[1], 'held', '1', 'heldsig', ARGV[plan_at]) end
end
end

-- 6. Specs, by home hour. What has none is damage: dropped, counted, never granted.
local n = chosen_n
local out = { 'OK', stamp, -1, 0, reaped, leap, 0, clock, 0 }
if n > 0 then
  local ids, specs, first, same, minute_ = {}, nil, shelf(chosen[1]), true, sub(chosen[1], 1, 5)
  for i = 1, n do
    local member = chosen[i]
    ids[i] = sub(member, 1, 16)
    local p = sub(member, 1, 5)
    if p ~= minute_ then
      minute_ = p
      if shelf(member) ~= first then same = false end
    end
  end
  if same then
    safely(need, 'hash', 'task:' .. first)
    specs = call('HMGET', P .. 'task:' .. first, unpack(ids))
  else
    local by = {}
    specs = {}
    for i = 1, n do
      local m = shelf(ids[i])
      local b = by[m]
      if not b then
        b = { n = 0, ids = {}, at = {} }
        by[m] = b
      end
      local k = b.n + 1
      b.n, b.ids[k], b.at[k] = k, ids[i], i
    end
    for m, b in pairs(by) do
      safely(need, 'hash', 'task:' .. m)
      local found = call('HMGET', P .. 'task:' .. m, unpack(b.ids))
      for j, i in ipairs(b.at) do specs[i] = found[j] end
    end
  end
  local ats = call('EXISTS', P .. 'at') == 1 and call('HMGET', P .. 'at', unpack(ids)) or {}
  local deadline = lnow + dispatch_ms
  local dl, own = format('%013.0f', deadline), nil
  -- Queues with a dispatch time-out of their own.
  for group, ms in string.gmatch(ARGV[11], ';(...)(%d+)') do
    own = own or {}
    local whole = math.ceil((lnow + ms) / 1000) * 1000
    own[group] = format('%013.0f', whole)
    safely(need, 'string', lease_name(whole))
  end
  local first_grant = '00000001' .. nonce
  -- Tasks at home with the same flags and lane have the same record, so it is made once.
  local hset, granted, g, firsts, f, records, alike, runs = {}, {}, 0, {}, 0, {}, {}, {}
  local function refuse(i, id, spec, late)
    if not spec then
      count('deleted', 1)
      call('HDEL', P .. 'at', id)
      rares[#rares + 1] = rare(id, NO_GRANT, 'F', 0, 'due without a spec: dropped')
      return true
    elseif late < now then
      safely(need_move)
      safely(need_end, id, spec)
      count('skipped', 1)
      finish(id, spec, 'K', ats[i] and sub(ats[i], 18, 25) or '00000000', 'too late to start')
      rares[#rares + 1] = rare(id, NO_GRANT, 'K', 0, 'too late: it was not to start after its latest start')
      return true
    end
  end
  local function bits(lane, b, version, ruled)
    if tallies and counted[sub(lane, 1, 3)] then b = b + 8 end
    return string.char(48 + b + ((version - 1) % 4 >= 2 and 32 or 0) + (ruled and 16 or 0))
  end
  -- Who must wait for others of its placement key is set aside, still pending, and pays nothing.
  local gated = turns_ and turns_.ruled
  local stays, goes, waiting = {}, {}, 0
  if gated then stays, goes = safely(turns().gate, n, ids, chosen, specs, ats) end
  local function set_aside(i, row)
    local id, lane = ids[i], sub(chosen[i], 17, 20)
    turns().keep(row, id, lane)
    waiting = waiting + 1
    rares[#rares + 1] = rare(id, NO_GRANT, 'B', 0, row.why)
    local by_tier = rules and rules[sub(lane, 1, 3)]
    for _, purse in ipairs(by_tier and by_tier[digit(sub(lane, 4, 4)) % 8] or {}) do purse.spent = purse.spent - 1 end
  end
  for i = 1, n do
    local id, spec, head, r = ids[i], specs[i], chosen[i], nil
    local version, flags = 0, 0
    if spec then version, flags = byte(spec, 1, 2) end
    if gated and stays[i] then set_aside(i, stays[i])
    elseif not ((not spec or flags % 32 >= 16) and refuse(i, id, spec, spec and spec_options(spec).start_before)) then
      local ruled = gated and goes[i]
      if ruled then ruled = turns().went(ruled, id) end
      local lane, at = sub(head, 17, 20), ats[i]
      if at then
        at = at_read(at)
        local grant = format('%08x', tonumber(at.fence, 16) + 1) .. nonce
        r = 'c-' .. bits(lane, flags % 2 + (flags % 16 >= 8 and 6 or 4), version, ruled) .. (own and own[sub(lane, 1, 3)] or dl) .. grant .. format('%02x', at.losses) .. lane .. pod
        head = head .. grant .. format('%013.0f%02x', at.due, at.failures)
        records[#records + 1] = id .. grant
      else
        local kind = flags + (version > 2 and 256 * version or 0) + (ruled and 4096 or 0)
        local same_flags = alike[kind]
        if not same_flags then
          same_flags = {}
          alike[kind] = same_flags
        end
        r = same_flags[lane]
        if not r then
          r = 'c-' .. bits(lane, flags % 2 + ((flags % 16 >= 8 or version > 4) and 2 or 0), version, ruled) .. (own and own[sub(lane, 1, 3)] or dl) .. first_grant .. '00' .. lane .. pod
          same_flags[lane] = r
        end
        f = f + 1
        firsts[f] = id
      end
      g = g + 1
      granted[g] = id
      if tallies then
        local group = sub(lane, 1, 3)
        if counted[group] then runs[group] = (runs[group] or 0) + 1 end
      end
      hset[2 * g - 1], hset[2 * g] = id, r
      out[2 * g + 8], out[2 * g + 9] = head, spec
    end
  end
  if gated then safely(turns().land) end
  if g > 0 then
    roomy(run, granted[1], g)
    call('HSET', run, unpack(hset))
    local list = table.concat(granted)
    if own then
      local by = {}
      for i = 1, g do
        local name = lease_name(run_deadline(hset[2 * i]))
        by[name] = by[name] or {}
        table.insert(by[name], granted[i])
      end
      for name, some_ids in pairs(by) do lease_add(name, table.concat(some_ids)) end
    else lease_add(lease_name(deadline), list) end
    call('SET', P .. 'last:' .. pod, ARGV[4] .. nonce)
    call('APPEND', P .. 'last:' .. pod, list)
    count('running', g)
    for group, k in pairs(runs) do tally(group, 'r', k) end
    -- What lapsed is told before it is granted again.
    tell()
    if f > 0 then emit('g', pod, f == g and list or table.concat(firsts), first_grant) end
    if #records > 0 then emit('c', pod, table.concat(records)) end
  end
  count('pending', waiting - n)
  if waiting > 0 then
    count('held', waiting)
    again = true
  end
  for _, l in ipairs(from_lane) do
    call('ZREMRANGEBYRANK', P .. 'ready:' .. l.lane, 0, l.used - 1)
    count('ready', -l.used)
    if l.used >= l.all then call('ZREM', P .. 'ring:' .. l.level, l.lane) end
  end
  for _, t in ipairs(taken) do
    call('ZREMRANGEBYRANK', P .. 'due:' .. t.name, 0, t.n - 1)
    if call('EXISTS', P .. 'due:' .. t.name) == 0 then unlist(t.name) end
  end
end
flush()

-- 7. When to come again: at once while something ripe is left, else at the next due time.
do
local next_due = -1
if backlog == 0 and not truncated then
  for _, name in ipairs(call('ZRANGE', agenda, 0, 7)) do
    local kind = sub(name, 1, 1)
    local keys = kind == 't' and { 'timer:' .. sub(name, 2) } or {}
    if kind ~= 't' and kind ~= 'k' then
      for i, set in ipairs(due_sets(name)) do keys[i] = 'due:' .. set end
    end
    for _, key in ipairs(keys) do
      -- One of another type is met when it is due.
      local head = redis.pcall('ZRANGE', P .. key, 0, 0, 'WITHSCORES')
      local due = head[2] and tonumber(head[2])
      if due and (next_due < 0 or due < next_due) then next_due = due end
    end
  end
  local look = (meta[15] or turns_) and call('ZRANGE', P .. 'looks', 0, 0, 'WITHSCORES')
  local at = look and look[2] and tonumber(look[2])
  if at and (next_due < 0 or at < next_due) then next_due = at > now and at or now end
else
  -- The urgent have room of their own: they do not wait until others find some.
  for _, name in ipairs(call('ZRANGE', agenda, 0, 2)) do
    if sub(name, 1, 1) ~= 't' and sub(name, 1, 1) ~= 'k' then
      local set = due_sets(name)[1]
      local head = string.find(set, 'u', 1, true) and redis.pcall('ZRANGE', P .. 'due:' .. set, 0, 0, 'WITHSCORES') or {}
      local due = head[2] and tonumber(head[2])
      if due and due > now and (next_due < 0 or due < next_due) then next_due = due end
    end
  end
end
out[3] = next_due
out[4] = truncated and backlog + 1 or backlog
out[7] = again and 1 or 0
local rests = running + (delta.running or 0) <= 0 and ready_before + (delta.ready or 0) <= 0 and not meta[11] and aside == 0
out[9] = rests and 1 or 0
local poll = now + (rests and REST or lock_ms)
permit_put((backlog > 0 or truncated or again) and 0 or (next_due >= 0 and next_due < poll and next_due or poll))
end
if rules then
  local said = {}
  for _, purse in ipairs(purses) do said[#said + 1] = format('%.0f,%.0f;', purse.spent, purse.denied) end
  said[#said + 1] = '|'
  if tallies then
    for i = 1, #counted do
      local now_runs = call('HGET', P .. 'tally', counted[i] .. 'r') or '0'
      said[#said + 1] = now_runs .. ',' .. (tallies[3 * i - 1] or '0') .. ',' .. (tallies[3 * i] or '0') .. ';'
    end
  end
  out[#out + 1] = table.concat(said)
end
return out
