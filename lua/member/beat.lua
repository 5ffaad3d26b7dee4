-- member/beat: a pod or an executor says that it lives, and hears who else does.
-- moves   none
-- keys    1 {namespace:pods}:meta or {namespace:executors}:meta   2 …:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 id ("" only listens)  3 record  4 lost after ms  5 "1": list the others
-- gives   OK {stamp, n × (id, record)}
-- bound   at most 10,000 members; removes at most 100 lost ones a call
-- events  none
-- memory  allow-oom
local seen, records, id = P .. 'seen', P .. 'records', ARGV[2]
if id ~= '' then
  if call('HSET', records, id, ARGV[3]) == 1 then call('SPUBLISH', P .. 'new', id) end
  call('ZADD', seen, now, id)
end
-- After a leap of the clock backwards nobody is lost for having been seen "later".
for _, lost in ipairs(call('ZRANGE', seen, '-inf', now - tonumber(ARGV[4]), 'BYSCORE', 'LIMIT', 0, 100)) do
  call('ZREM', seen, lost)
  call('HDEL', records, lost)
end
local out = { 'OK', stamp }
if ARGV[5] == '1' then
  for _, v in ipairs(call('HGETALL', records)) do out[#out + 1] = v end
end
return out
