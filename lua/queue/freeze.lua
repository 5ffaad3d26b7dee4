-- queue/freeze: what is frozen starts nothing more until it is thawed.
-- moves   none (frozen tasks stay pending)
-- keys    1 {namespace:freeze}:meta   2 {namespace:freeze}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 "f" freeze, "t" thaw, "" only read  3 what: all, q:<queue>  4 who  5 cause  6 most
-- gives   OK {stamp, epoch, 1 if something changed, n × (what, since 13 + length of who 2 + who + cause)}  |  FULL {stamp}
-- bound   at most as many entries as the caller allows
-- events  none
-- memory  allow-oom
local frozen, changed = P .. 'frozen', 0
if ARGV[2] == 'f' and call('HEXISTS', frozen, ARGV[3]) == 0 then
  if call('HLEN', frozen) >= tonumber(ARGV[6]) then return { 'FULL', stamp } end
  call('HSET', frozen, ARGV[3], now13 .. format('%02d', #ARGV[4]) .. ARGV[4] .. ARGV[5])
  changed = 1
elseif ARGV[2] == 't' then
  changed = call('HDEL', frozen, ARGV[3])
end
if changed == 1 then
  call('HINCRBY', KEYS[1], 'epoch', 1)
  call('SPUBLISH', P .. 'new', ARGV[3])
end
local out = { 'OK', stamp, tonumber(call('HGET', KEYS[1], 'epoch') or 0), changed }
for _, v in ipairs(call('HGETALL', frozen)) do out[#out + 1] = v end
return out
