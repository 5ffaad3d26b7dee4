-- queue/runs: adds up how long tasks of queues run and how many fail, and tells it.
-- moves   none
-- keys    1 {namespace:runs}:meta   2 {namespace:runs}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 counts are halved every so many ms
--         3… queue, failed, longest in ms, n, n × (bin, count): what is to be added to each queue
-- gives   OK {stamp, a flat list a queue: f, failed, m, longest, at, last halving, bin, count, …}
-- bound   as many queues and bins as the caller adds; a queue has at most 700 bins
-- events  none
-- memory  allow-oom
local every, at, out = tonumber(ARGV[2]), 3, { 'OK', stamp }
while at <= #ARGV do
  local key, n = P .. 'q:' .. ARGV[at], tonumber(ARGV[at + 3])
  -- What is older counts for less.
  local faded = tonumber(call('HGET', key, 'at') or 0)
  if n > 0 and (faded == 0 or now - faded >= every or faded > now) then
    local all = call('HGETALL', key)
    for i = 1, #all, 2 do
      local left = (tonumber(all[i]) or all[i] == 'f') and floor(all[i + 1] / 2)
      if left and left > 0 then call('HSET', key, all[i], left)
      elseif left then call('HDEL', key, all[i]) end
    end
    call('HSET', key, 'at', now13)
  end
  for i = at + 4, at + 3 + 2 * n, 2 do call('HINCRBY', key, ARGV[i], ARGV[i + 1]) end
  if n > 0 then
    if tonumber(ARGV[at + 1]) > 0 then call('HINCRBY', key, 'f', ARGV[at + 1]) end
    if tonumber(ARGV[at + 2]) > tonumber(call('HGET', key, 'm') or 0) then call('HSET', key, 'm', ARGV[at + 2]) end
  end
  out[#out + 1] = call('HGETALL', key)
  at = at + 4 + 2 * n
end
return out
