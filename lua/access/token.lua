-- access/token: tokens of the HTTP port are kept, dropped and read. Of a token only its hash is here.
-- moves   none
-- keys    1 {namespace:access}:meta   2 {namespace:access}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 "p" put, "d" drop, "" only read  3 id  4 record  5 most
-- gives   OK {stamp, 1 if something changed, n × (id, record)}  |  FULL {stamp}
-- bound   at most as many tokens as the caller allows
-- events  none
-- memory  allow-oom
local tokens, changed = P .. 'tokens', 0
if ARGV[2] == 'p' and call('HEXISTS', tokens, ARGV[3]) == 0 then
  if call('HLEN', tokens) >= tonumber(ARGV[5]) then return { 'FULL', stamp } end
  changed = call('HSET', tokens, ARGV[3], ARGV[4])
elseif ARGV[2] == 'd' then
  changed = call('HDEL', tokens, ARGV[3])
end
if changed == 1 then call('SPUBLISH', P .. 'new', ARGV[3]) end
local out = { 'OK', stamp, changed }
for _, v in ipairs(call('HGETALL', tokens)) do out[#out + 1] = v end
return out
