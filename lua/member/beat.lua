-- member/beat: a pod or an executor says that it lives, and hears who else does.
-- moves   none
-- keys    1 {namespace:pods}:meta or {namespace:executors}:meta   2 …:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 id ("" only listens)  3 record  4 lost after ms  5 "1": list the others
--         6 "1": remember who is lost until somebody has looked after what lay with it
-- gives   OK {stamp}  |  OK {stamp, ids of lost ones, ids of those that are to drain, n × (id, record)}
-- bound   at most 10,000 members; removes at most 100 lost ones a call
-- events  none
-- memory  allow-oom
local seen, records, lost, drained, id = P .. 'seen', P .. 'records', P .. 'lost', P .. 'drained', ARGV[2]
if id ~= '' then
  if call('HSET', records, id, ARGV[3]) == 1 then
    call('SREM', lost, id)
    call('SPUBLISH', P .. 'new', id)
  end
  call('ZADD', seen, now, id)
end
-- After a leap of the clock backwards nobody is lost for having been seen "later".
for _, gone in ipairs(call('ZRANGE', seen, '-inf', now - tonumber(ARGV[4]), 'BYSCORE', 'LIMIT', 0, 100)) do
  call('ZREM', seen, gone)
  call('HDEL', records, gone)
  call('SREM', drained, gone)
  if ARGV[6] == '1' then call('SADD', lost, gone) end
end
if ARGV[5] ~= '1' then return { 'OK', stamp } end
local out = { 'OK', stamp, call('SMEMBERS', lost), call('SMEMBERS', drained) }
for _, v in ipairs(call('HGETALL', records)) do out[#out + 1] = v end
return out
