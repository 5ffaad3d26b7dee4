-- intake/edit: a task gets another spec; a run that is under way keeps the one it began with.
-- moves   none: the task stays where it is
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 who  3 id  4 grant it must run under, or ""  5 edits seen  6 spec  7 what is changed
-- gives   OK {stamp, P, R, D done, and where | O not under that grant | V changed meanwhile | ? not known | its outcome}
-- bound   one task
-- events  edited
-- memory  refused when full
need('stream', 'events')
sized()
need_all('hash', 'run', 'at', 'lock')
need_all('zset', 'agenda', 'dead')
local id, new = ARGV[3], ARGV[6]
local state, spec, r = find(id)
if ARGV[4] ~= '' and not (state == 'R' and run_grant(r) == ARGV[4]) then return { 'OK', stamp, 'O' } end
if not spec then return { 'OK', stamp, outcome(id) } end
local at = state == 'P' and r or at_of(id, spec)
if at.edits ~= tonumber(ARGV[5]) then return { 'OK', stamp, 'V' } end
local was, is = spec_options(spec), spec_options(new)
-- What says where a task lies and who may be like it stays.
if sub(spec, 3, 8) ~= sub(new, 3, 8) or spec_bound(spec) ~= spec_bound(new) or was.key ~= is.key or was.window ~= is.window or was.plan ~= is.plan then
  error({ err = 'ERR an edit may not move task ' .. id })
end
local function timer(deadline) return 'timer:' .. format('%.0f', floor(deadline / 60000)) end
local timed = state ~= 'D' and was.deadline ~= is.deadline
if timed and was.deadline then need('zset', timer(was.deadline)) end
if timed and is.deadline then need('zset', timer(is.deadline)) end
if sized() then sized().change(shelf(id), #new - #spec) end
call('HSET', P .. 'task:' .. shelf(id), id, new)
roomy(P .. 'at', id, 1)
call('HSET', P .. 'at', id, at_make(at.due, at.lane, at.fence, at.failures, at.losses, (at.edits + 1) % 256))
if timed and was.deadline then call('ZREM', P .. timer(was.deadline), id) end
if timed and is.deadline then
  call('ZADD', P .. timer(is.deadline), is.deadline, id)
  call('ZADD', P .. 'agenda', floor(is.deadline / 60000), 't' .. format('%.0f', floor(is.deadline / 60000)))
end
local grant = NO_GRANT
if state == 'R' then
  grant = run_grant(r)
  -- Whoever ends it must look: it is not at home any more, and may have a timer.
  local bits = byte(r, 3) - 48
  bits = bits - bits % 8 + byte(new, 2) % 2 + (is.deadline and 6 or 4)
  call('HSET', P .. 'run', id, sub(r, 1, 2) .. string.char(48 + bits) .. sub(r, 4))
end
if #new > tonumber(call('HGET', KEYS[1], 'maxspec') or 0) then call('HSET', KEYS[1], 'maxspec', #new) end
emit('v', ARGV[2], rare(id, grant, 'E', 0, ARGV[7]))
if timed and is.deadline then wake(is.deadline) end
return { 'OK', stamp, state }
