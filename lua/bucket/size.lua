-- bucket/size: bytes of the specs of a bucket, counted from now on, or no longer.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 "1": count from now on, "0": no longer, "": only tell
-- gives   OK {stamp, bytes}
-- bound   of what is there the hours of 1,000 entries of the agenda are met, with 2,000 tasks in all
-- events  none
-- memory  allow-oom
need('hash', 'bytes')
local was = call('HGET', KEYS[1], 'sized')
if ARGV[2] == '1' and not was then
  need('zset', 'agenda')
  call('HSET', KEYS[1], 'sized', '1')
  sized_flag = '1'
  local minutes, seen = call('ZRANGE', P .. 'agenda', 0, 999, 'WITHSCORES'), {}
  for i = 2, #minutes, 2 do
    local m = format('%.0f', floor(minutes[i] / 60))
    if not seen[m] and call('EXISTS', P .. 'task:' .. m) == 1 then sized().change(m, 0) end
    seen[m] = true
  end
elseif ARGV[2] == '0' then
  call('HDEL', KEYS[1], 'sized')
  call('UNLINK', P .. 'bytes')
end
return { 'OK', stamp, tonumber(call('HGET', P .. 'bytes', '#') or 0) }
