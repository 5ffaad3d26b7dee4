-- bucket/resize: another spread, or other bounds for it, if it is still the one that the caller saw.
-- moves   none
-- keys    1 {namespace:spread}:meta   2 {namespace:spread}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 epoch that the caller saw  3… n × (field, value; "" removes it)
-- gives   OK {stamp, epoch}  |  CHANGED {stamp, epoch}
-- bound   one hash of twelve fields
-- events  none
-- memory  allow-oom
local h = P .. 'spread'
need('hash', 'spread')
local epoch = call('HGET', h, 'epoch') or '0'
if epoch ~= ARGV[2] then return { 'CHANGED', stamp, tonumber(epoch) } end
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then call('HDEL', h, ARGV[i]) else call('HSET', h, ARGV[i], ARGV[i + 1]) end
end
local v = call('HMGET', h, 'buckets', 'peak')
if tonumber(v[1]) > tonumber(v[2] or 0) then call('HSET', h, 'peak', v[1]) end
epoch = call('HINCRBY', h, 'epoch', 1)
call('SPUBLISH', P .. 'new', format('%.0f', epoch))
return { 'OK', stamp, epoch }
