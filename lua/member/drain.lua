-- member/drain: an operator says that an executor is to be given nothing new, or may be again.
-- moves   none
-- keys    1 {namespace:executors}:meta   2 …:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 id  3 "1": drain, "0": resume
-- gives   OK {stamp, "1" if this changed it}  |  UNKNOWN {stamp}: no such executor lives
-- bound   one member
-- events  none
-- memory  allow-oom
local id, drained = ARGV[2], P .. 'drained'
if call('HEXISTS', P .. 'records', id) == 0 then return { 'UNKNOWN', stamp } end
local changed = call(ARGV[3] == '1' and 'SADD' or 'SREM', drained, id)
if changed == 1 then call('SPUBLISH', P .. 'new', id) end
return { 'OK', stamp, changed }
