-- intake/reschedule: a pending task gets another due time.
-- moves   pending -> pending
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 who  3 id  4 due
-- gives   OK {stamp, P moved | R running | D dead | ? not known | its outcome}
-- bound   one task
-- events  moved
-- memory  refused when full
need('stream', 'events')
need_all('hash', 'run', 'at')
need_all('zset', 'agenda', 'dead')
need('set', 'parked')
need_all('hash', 'lock', 'counts')
local id, due = ARGV[3], tonumber(ARGV[4])
local state, spec, at = find(id)
if state == 'P' then
  need_place(id, at.due, at.lane, spec)
  need_due(id, due, at.lane)
  unplace(id, at.due, at.lane, spec)
  if placed(spec) then turns().moved(id, spec) end
  roomy(P .. 'at', id, 1)
  call('HSET', P .. 'at', id, at_make(due, at.lane, at.fence, at.failures, at.losses, (at.edits + 1) % 256))
  due_put(id, due, at.lane)
  emit('v', ARGV[2], rare(id, NO_GRANT, 'M', due, 'rescheduled'))
  wake(due)
end
return { 'OK', stamp, state == '?' and outcome(id) or state }
