-- due/yield: a pod lets go of a bucket.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 pod  3 permit
-- gives   OK {stamp, 1 if the pod held it}
-- bound   one permit
-- events  none
-- memory  allow-oom
local lock, held = P .. 'lock', 0
local mine = call('HGET', lock, ARGV[2])
if mine and sub(mine, 1, 16) == ARGV[3] then
  call('HDEL', lock, ARGV[2])
  call('DEL', P .. 'last:' .. ARGV[2])
  -- Another pod may have gone to rest on this bucket before.
  call('SPUBLISH', P .. 'wake', '0')
  held = 1
  -- Whoever was kept out may come at once.
  call('SPUBLISH', P .. 'wake', now13)
end
return { 'OK', stamp, held }
