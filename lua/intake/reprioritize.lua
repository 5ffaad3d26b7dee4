-- intake/reprioritize: a pending task gets another priority.
-- moves   pending -> pending
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 who  3 id  4 priority 0 to 5
-- gives   OK {stamp, P moved | R running | D dead | ? not known | its outcome}
-- bound   one task
-- events  moved
-- memory  refused when full
need('stream', 'events')
need_all('hash', 'run', 'at')
need_all('zset', 'agenda', 'dead')
need('set', 'parked')
need_all('hash', 'lock', 'counts')
local id, p = ARGV[3], tonumber(ARGV[4])
local state, spec, at = find(id)
if state == 'P' then
  need_place(id, at.due, at.lane, spec)
  local d = p * 8 + digit(sub(at.lane, 4, 4)) % 8 + 1
  local lane = sub(at.lane, 1, 3) .. sub(DIGITS, d, d)
  need_place(id, at.due, lane, spec)
  local place = unplace(id, at.due, at.lane, spec)
  roomy(P .. 'at', id, 1)
  call('HSET', P .. 'at', id, at_make(at.due, lane, at.fence, at.failures, at.losses, (at.edits + 1) % 256))
  if place and sub(place, 1, 5) == 'ready' then lane_put(id, at.due, lane) else due_put(id, at.due, lane) end
  emit('v', ARGV[2], rare(id, NO_GRANT, 'M', at.due, 'priority changed to P' .. p))
  wake(at.due)
end
return { 'OK', stamp, state == '?' and outcome(id) or state }
