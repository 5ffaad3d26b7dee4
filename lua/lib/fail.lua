-- lib/fail: what follows a failure: another try later, a hand-back, or the dead letters.
-- One attempt in `tries` and in a dead letter: time 13, fence 8 hex, length of the holder 2, holder, length of the text 4, text
local function attempt(grant, holder, text)
  text = sub(text, 1, 1024)
  return now13 .. sub(grant, 1, 8) .. format('%02d', #holder) .. holder .. format('%04d', #text) .. text
end
local function tries_add(id, record)
  -- Attempts kept: the first one and the latest.
  local ATTEMPTS = 16
  local had = call('HGET', P .. 'tries', id) or ''
  local at, n, first, second = 1, 0, 0, 0
  while at <= #had do
    local name = tonumber(sub(had, at + 21, at + 22))
    local text = name and tonumber(sub(had, at + 23 + name, at + 26 + name))
    if not text then break end
    at, n = at + 27 + name + text, n + 1
    if n == 1 then first = at - 1 elseif n == 2 then second = at - 1 end
  end
  if n >= ATTEMPTS then had = sub(had, 1, first) .. sub(had, second + 1) end
  had = had .. record
  call('HSET', P .. 'tries', id, had)
  return had
end
-- The wait after the n-th failure in ms; `chance` in 0..1 takes away up to the jitter's share.
local function wait_ms(spec, n, chance)
  local growth, jitter, base, factor, cap = 2, 20, 5000, 500, 3600000
  if byte(spec, 1) % 2 == 1 then
    growth, jitter, base, factor, cap = byte(spec, 10), byte(spec, 11), u32(spec, 12), u16(spec, 16), u32(spec, 18)
  end
  local wait = base
  if growth == 1 then wait = base * n
  elseif growth == 2 then wait = base * (factor / 100) ^ (n - 1) end
  if not (wait < cap) then wait = base == 0 and 0 or cap end
  return floor(wait - wait * jitter / 100 * chance)
end
local function lane_of_tier(lane, failures)
  local d = level(lane) * 8 + (failures < 6 and failures or 6) + 1
  return sub(lane, 1, 3) .. sub(DIGITS, d, d)
end
local function failure_of(spec, at, final)
  local failures = at.failures < 255 and at.failures + 1 or 255
  return failures, final or failures > (byte(spec, 1) % 2 == 1 and byte(spec, 9) or 2)
end
-- What a counted failure would write.
local function need_fail(id, spec, final, after, chance)
  if placed(spec) then turns().need() end
  local at = at_of(id, spec)
  local failures, dies = failure_of(spec, at, final)
  if dies then
    need('hash', 'dead:' .. id)
    need_end(id, spec)
  else
    need_due(id, now + (after or wait_ms(spec, failures, chance)), lane_of_tier(at.lane, failures))
  end
end
-- What a hand-back would write.
local function need_back(id, spec)
  if placed(spec) then turns().need() end
  local at = at_of(id, spec)
  if at.due > now then
    need('zset', 'agenda')
    need_due(id, at.due, at.lane)
    return
  end
  need('zset', 'ready:' .. at.lane)
  need('zset', 'ring:' .. level(at.lane))
end
-- Sets a running task back into its lane, uncounted; it goes to the front by its due time. One that was claimed ahead
-- of its time waits for it again.
local function hand_back(id, r, spec, losses)
  local at = at_of(id, spec)
  roomy(P .. 'at', id, 1)
  call('HSET', P .. 'at', id, at_make(at.due, at.lane, sub(run_grant(r), 1, 8), at.failures, losses, at.edits))
  if at.due > now then due_put(id, at.due, at.lane) else lane_put(id, at.due, at.lane) end
  call('HDEL', P .. 'run', id)
  tally_end(id, spec, r)
end
-- Puts a running task among the dead letters, with its spec kept for a redrive.
local function bury(id, r, spec, at, reason, history, text)
  roomy(P .. 'at', id, 1)
  call('HSET', P .. 'at', id, at_make(at.due, at.lane, sub(run_grant(r), 1, 8), at.failures, run_losses(r), at.edits))
  call('HSET', P .. 'dead:' .. id, 'reason', reason, 'at', now13, 'attempts', history)
  call('ZADD', P .. 'dead', now, id)
  if byte(spec, 2) % 16 ~= 0 then
    local o = spec_options(spec)
    if o.key then key_end(id, o) end
    if o.deadline then call('ZREM', P .. 'timer:' .. format('%.0f', floor(o.deadline / 60000)), id) end
  end
  call('HDEL', P .. 'tries', id)
  call('HDEL', P .. 'run', id)
  tally_end(id, spec, r, reason ~= 'lost_unstarted' and 'f' or nil)
  tally_bound(spec, -1)
  if placed(spec) then turns().ended(id, spec) end
  remember(id .. 'D' .. sub(run_grant(r), 1, 8))
  if byte(spec, 1) > 4 then announce(id, spec, 'D', sub(run_grant(r), 1, 8), reason .. ': ' .. text) end
end
-- A counted failure. Answers 'R' with the new due time, or 'D'.
local function fail(id, r, spec, text, reason, final, after, chance)
  local at = at_of(id, spec)
  local history = tries_add(id, attempt(run_grant(r), run_holder(r), text))
  local dies
  at.failures, dies = failure_of(spec, at, final)
  if dies then
    bury(id, r, spec, at, reason, history, text)
    return 'D', 0
  end
  local due = now + (after or wait_ms(spec, at.failures, chance))
  local lane = lane_of_tier(at.lane, at.failures)
  roomy(P .. 'at', id, 1)
  call('HSET', P .. 'at', id, at_make(due, lane, sub(run_grant(r), 1, 8), at.failures, run_losses(r), at.edits))
  due_put(id, due, lane)
  call('HDEL', P .. 'run', id)
  tally_end(id, spec, r, 'f')
  return 'R', due
end
