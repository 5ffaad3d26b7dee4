-- member/inbox: an executor keeps its inbox open and says how much it may hold.
-- moves   none
-- keys    1 {namespace:x:executor}:meta   2 …:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 most in hand and inbox  3 alive for ms  4 slots for urgent ones only
-- gives   OK {stamp, waiting}
-- bound   one inbox
-- events  none
-- memory  allow-oom
call('HSET', SLOTS, 'cap', ARGV[2], 'ucap', ARGV[4], 'till', format('%013.0f', now + tonumber(ARGV[3])))
local s = room()
return { 'OK', stamp, s.waiting }
