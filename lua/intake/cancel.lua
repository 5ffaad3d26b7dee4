-- intake/cancel: tasks end before they start; running ones are asked to stop.
-- moves   pending -> cancelled; running: cancel flag
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 who  3 cause  4… ids
-- gives   OK {stamp, a letter an id: C cancelled, A asked (running), D dead, ? not known, else its outcome; holder of each A}
-- bound   ids <= single_max_rows; looks through 16 MiB of finished ids
-- events  cancelled, cancel asked
-- memory  allow-oom
local who, counts = ARGV[2], P .. 'counts'
need('stream', 'events')
need_all('hash', 'counts', 'run', 'at', 'tries')
need_all('zset', 'agenda', 'dead')
need('set', 'parked')
local states, specs, ats, gone, n = {}, {}, {}, {}, 0
for i = 4, #ARGV do
  local id = ARGV[i]
  local state, spec, at = find(id)
  states[i], specs[i], ats[i] = state, spec, at
  if state == 'P' then
    need_place(id, at.due, at.lane, spec)
    need_end(id, spec)
  elseif state == '?' and not gone[id] then
    gone[id] = true
    n = n + 1
  end
end
local hits = n > 0 and recall(gone, n, 90, 16777216) or {}
local letters, holders, rares, cancelled, seen = {}, {}, {}, 0, {}
for i = 4, #ARGV do
  local id, state, at = ARGV[i], states[i], ats[i]
  if state == 'P' then
    if not seen[id] then
      unplace(id, at.due, at.lane, specs[i])
      finish(id, specs[i], 'C', at.fence, ARGV[3])
      cancelled = cancelled + 1
      rares[#rares + 1] = rare(id, NO_GRANT, 'C', 0, ARGV[3])
    end
    state = 'C'
  elseif state == 'R' then
    if not seen[id] and not run_cancelled(at) then
      call('HSET', P .. 'run', id, sub(at, 1, 1) .. 'C' .. sub(at, 3))
      rares[#rares + 1] = rare(id, run_grant(at), 'A', 0, ARGV[3])
    end
    holders[#holders + 1] = run_holder(at)
    state = 'A'
  elseif state == '?' then
    state = ended(hits[id])
  end
  seen[id] = true
  letters[#letters + 1] = state
end
if cancelled > 0 then
  call('HINCRBY', counts, 'pending', -cancelled)
  call('HINCRBY', counts, 'cancelled', cancelled)
end
if #rares > 0 then emit('v', who, table.concat(rares)) end
return { 'OK', stamp, table.concat(letters), unpack(holders) }
