-- member/leave: a pod or an executor goes in order, or a lost one has been looked after.
-- moves   none
-- keys    1 {namespace:pods}:meta or {namespace:executors}:meta   2 …:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 id
-- gives   OK {stamp}
-- bound   one member
-- events  none
-- memory  allow-oom
local id = ARGV[2]
call('ZREM', P .. 'seen', id)
call('SREM', P .. 'drained', id)
call('SREM', P .. 'lost', id)
if call('HDEL', P .. 'records', id) == 1 then call('SPUBLISH', P .. 'new', id) end
return { 'OK', stamp }
