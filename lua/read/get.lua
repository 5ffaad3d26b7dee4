-- read/get: all that is known of one task.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 id
-- gives   OK {stamp, letter, spec, place record, run record, tries, dead reason, died at, attempts, lane is parked,
--         "" or why it waits for its placement key: o + whose turn it is, r + how many run, w; when it is looked at again}
--         letter: P, R, D, an outcome, or ? not known; what there is not is ""
-- bound   one task
-- events  none
-- memory  no-writes
local id = ARGV[2]
local state, spec = find(id)
local dead = state == 'D' and call('HMGET', P .. 'dead:' .. id, 'reason', 'at', 'attempts') or {}
if state == '?' then state = outcome(id) end
local at = spec and at_of(id, spec)
local lane, waits, again = at and at.lane, '', ''
if state == 'P' and placed(spec) then
  local name = turns().name(spec)
  if call('ZSCORE', P .. 'kept', turns().member(name, id, at.due, at.lane)) then
    local first, runs = call('HGET', P .. 'turns', name), call('HGET', P .. 'flight', name)
    waits = first and 'o' .. first or runs and 'r' .. #runs / 16 or 'w'
    again = call('ZSCORE', P .. 'looks', name) or ''
  end
end
return {
  'OK', stamp, state, spec or '', call('HGET', P .. 'at', id) or '', call('HGET', P .. 'run', id) or '',
  call('HGET', P .. 'tries', id) or '', dead[1] or '', dead[2] or '', dead[3] or '',
  lane and call('SISMEMBER', P .. 'parked', lane) or 0, waits, again,
}
