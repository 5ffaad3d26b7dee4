-- access/quota: how many tasks, and bytes of them, the namespace may hold.
-- moves   none
-- keys    1 {namespace:access}:meta   2 {namespace:access}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 most tasks  3 most bytes; each 0 for no bound, "" to leave it as it is
-- gives   OK {stamp, most tasks or 0, most bytes or 0}
-- bound   two fields
-- events  none
-- memory  allow-oom
for i, name in ipairs({ 'tasks', 'bytes' }) do
  local most = ARGV[i + 1]
  if most == '0' then call('HDEL', KEYS[1], name)
  elseif most ~= '' then call('HSET', KEYS[1], name, most) end
end
local found = call('HMGET', KEYS[1], 'tasks', 'bytes')
return { 'OK', stamp, tonumber(found[1] or 0), tonumber(found[2] or 0) }
