-- queue/lane: gives queues (with required labels) their codes; each has one for ever.
-- moves   none
-- keys    1 {namespace:lanes}:meta   2 {namespace:lanes}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 most groups  3… names
-- gives   OK {stamp, n × (code, or -1 when the namespace has no room)}
-- bound   names <= batch_max_rows
-- events  none
-- memory  refused when full
local by, out = P .. 'by_name', { 'OK', stamp }
for i = 3, #ARGV do
  local code = call('HGET', by, ARGV[i])
  if not code then
    local n = call('HLEN', by)
    if n < tonumber(ARGV[2]) then
      code = n
      call('HSET', by, ARGV[i], code)
      call('HSET', P .. 'by_code', code, ARGV[i])
      call('SPUBLISH', P .. 'new', ARGV[i])
    else
      code = -1
    end
  end
  out[#out + 1] = tonumber(code)
end
return out
