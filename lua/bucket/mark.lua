-- bucket/mark: closes a bucket to tasks that the spread sends, or opens it again.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 "1": close; "": open
-- gives   OK {stamp, 1 if that changed something}
-- bound   one hash
-- events  none
-- memory  allow-oom
need('hash', 'meta')
local closed = call('HGET', KEYS[1], 'closed')
local changed = (closed ~= false) ~= (ARGV[2] == '1')
if changed and closed then call('HDEL', KEYS[1], 'closed', 'gone')
elseif changed then call('HSET', KEYS[1], 'closed', now13, 'v', '1') end
return { 'OK', stamp, changed and 1 or 0 }
