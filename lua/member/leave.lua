-- member/leave: a pod or an executor goes in order.
-- moves   none
-- keys    1 {namespace:pods}:meta or {namespace:executors}:meta   2 …:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 id
-- gives   OK {stamp}
-- bound   one member
-- events  none
-- memory  allow-oom
call('ZREM', P .. 'seen', ARGV[2])
if call('HDEL', P .. 'records', ARGV[2]) == 1 then call('SPUBLISH', P .. 'new', ARGV[2]) end
return { 'OK', stamp }
