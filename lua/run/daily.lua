-- run/daily: whether a subject is met for the first time today under a name; one bit for each.
-- moves   none
-- keys    1 {namespace:days:<name>/<segment>}:meta   2 …:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 the subject's bit in its segment  3 kept for s
-- gives   OK {stamp, 1 if it is the first}
-- bound   one bit of a string of at most 128 KiB
-- events  none
-- memory  refused when full
local name = 'day:' .. format('%.0f', floor(now / 86400000))
need('string', name)
local met = call('SETBIT', P .. name, ARGV[2], 1)
if met == 0 then call('EXPIRE', P .. name, ARGV[3]) end
return { 'OK', stamp, 1 - met }
