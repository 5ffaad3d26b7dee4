-- decider/lead: one pod at a time decides; it takes or renews the lead and hears what was decided last.
-- moves   none
-- keys    1 {namespace:decider}:meta   2 {namespace:decider}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 pod  3 how long the lead lasts, ms; 0 gives it up
-- gives   OK {stamp, 1 if it leads, leader, state as last noted or ""}
-- bound   one hash
-- events  none
-- memory  allow-oom
need('hash', 'lead')
local h = P .. 'lead'
local v = call('HMGET', h, 'pod', 'until', 'state')
local till = tonumber(v[2] or 0)
local free = not v[1] or v[1] == ARGV[2] or till <= now or till > now + 600000
if free and ARGV[3] == '0' then
  if v[1] == ARGV[2] then call('HDEL', h, 'pod', 'until') end
  return { 'OK', stamp, 0, '', v[3] or '' }
end
if free then call('HSET', h, 'pod', ARGV[2], 'until', format('%.0f', now + tonumber(ARGV[3]))) end
return { 'OK', stamp, free and 1 or 0, free and ARGV[2] or v[1], v[3] or '' }
