-- read/get: all that is known of one task.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 id
-- gives   OK {stamp, letter, spec, place record, run record, tries, dead reason, died at, attempts, lane is parked}
--         letter: P, R, D, an outcome, or ? not known; what there is not is ""
-- bound   one task
-- events  none
-- memory  no-writes
local id = ARGV[2]
local state, spec = find(id)
local dead = state == 'D' and call('HMGET', P .. 'dead:' .. id, 'reason', 'at', 'attempts') or {}
if state == '?' then state = outcome(id) end
local lane = spec and at_of(id, spec).lane
return {
  'OK', stamp, state, spec or '', call('HGET', P .. 'at', id) or '', call('HGET', P .. 'run', id) or '',
  call('HGET', P .. 'tries', id) or '', dead[1] or '', dead[2] or '', dead[3] or '',
  lane and call('SISMEMBER', P .. 'parked', lane) or 0,
}
