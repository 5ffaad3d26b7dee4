-- read/dead: a page of dead letters, oldest first.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 not before ms  3 skip  4 most
-- gives   OK {stamp, n × (id, died at, reason, attempts, place record)}
-- bound   most <= 200
-- events  none
-- memory  no-writes
local out, most = { 'OK', stamp }, tonumber(ARGV[4])
if most > 200 then most = 200 end
local page = call('ZRANGE', P .. 'dead', ARGV[2], '+inf', 'BYSCORE', 'LIMIT', ARGV[3], most, 'WITHSCORES')
for i = 1, #page, 2 do
  local id = page[i]
  local letter = call('HMGET', P .. 'dead:' .. id, 'reason', 'attempts')
  local n = #out
  out[n + 1], out[n + 2], out[n + 3] = id, page[i + 1], letter[1] or ''
  out[n + 4], out[n + 5] = letter[2] or '', call('HGET', P .. 'at', id) or ''
end
return out
