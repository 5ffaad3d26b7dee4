-- access/quota: how many tasks the namespace may hold.
-- moves   none
-- keys    1 {namespace:access}:meta   2 {namespace:access}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 most tasks, 0 for no bound, "" only reads
-- gives   OK {stamp, most tasks or 0}
-- bound   one field
-- events  none
-- memory  allow-oom
if ARGV[2] == '0' then
  call('HDEL', KEYS[1], 'tasks')
elseif ARGV[2] ~= '' then
  call('HSET', KEYS[1], 'tasks', ARGV[2])
end
return { 'OK', stamp, tonumber(call('HGET', KEYS[1], 'tasks') or 0) }
