-- queue/spread: how a namespace spreads its tasks; the first caller fixes what can't change.
-- moves   none
-- keys    1 {namespace:spread}:meta   2 {namespace:spread}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 buckets of keys  3 buckets  4 holders   (used where nothing stands yet)
-- gives   OK {stamp, buckets of keys, buckets, holders, epoch, peak, closing, hot, least, most, pin, manual, ms when it was made}
--         closing: numbers with commas; hot: bucket:holders with commas; what was never set is ""
-- bound   one hash of thirteen fields
-- events  none
-- memory  allow-oom
local h = P .. 'spread'
if call('EXISTS', h) == 0 then
  call('HSET', h, 'key_buckets', ARGV[2], 'buckets', ARGV[3], 'peak', ARGV[3], 'holders', ARGV[4], 'epoch', '1', 'born', now13)
  call('HSET', KEYS[1], 'v', '1')
end
local v = call('HMGET', h, 'key_buckets', 'buckets', 'holders', 'epoch', 'peak', 'closing', 'hot', 'least', 'most', 'pin', 'manual', 'born')
local out = { 'OK', stamp, tonumber(v[1]), tonumber(v[2]), tonumber(v[3]), tonumber(v[4]), tonumber(v[5] or v[2]) }
for i = 6, 11 do out[i + 2] = v[i] or '' end
out[14] = tonumber(v[12])
return out
