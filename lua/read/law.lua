-- read/law: a bucket's counters beside what its places hold, in one moment or in pieces of a quiet time.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 rank in the agenda to go on from  3… places that nothing lists: due:<name>, ready:<lane>, held:<plan>
-- gives   OK {stamp, signature, next rank or -1, due, ready or -1 (too many lanes), held or -1, running, dead, counts (flat)}
--         due, ready, held, running, dead: of this piece; the signature is the same while nothing moves
-- bound   1,000 entries of the agenda, 5,000 lanes, 5,000 plans, 500 further places
-- events  none
-- memory  no-writes
local PIECE, LANES = 1000, 5000
local rank, due, ready, held, running, dead = tonumber(ARGV[2]), 0, 0, 0, 0, 0
local names = call('ZRANGE', P .. 'agenda', rank, rank + PIECE - 1)
for _, name in ipairs(names) do
  local kind = sub(name, 1, 1)
  if kind ~= 't' and kind ~= 'k' then
    for _, set in ipairs(due_sets(name)) do due = due + call('ZCARD', P .. 'due:' .. set) end
  end
end
local next_rank = #names == PIECE and rank + PIECE or -1
if rank == 0 then
  local lanes = call('SCARD', P .. 'parked')
  for p = 0, 5 do lanes = lanes + call('ZCARD', P .. 'ring:' .. p) end
  if lanes > LANES then ready = -1
  else
    for p = 0, 5 do
      for _, lane in ipairs(call('ZRANGE', P .. 'ring:' .. p, 0, -1)) do ready = ready + call('ZCARD', P .. 'ready:' .. lane) end
    end
    for _, lane in ipairs(call('SMEMBERS', P .. 'parked')) do
      if not call('ZSCORE', P .. 'ring:' .. level(lane), lane) then ready = ready + call('ZCARD', P .. 'ready:' .. lane) end
    end
  end
  held = call('ZCARD', P .. 'kept')
  local plans = call('ZRANGE', P .. 'helds', 0, LANES)
  for _, plan in ipairs(plans) do held = held + call('ZCARD', P .. 'held:' .. plan) end
  if #plans > LANES then held = -1 end
  for i = 3, #ARGV do
    local n, kind = call('ZCARD', P .. ARGV[i]), sub(ARGV[i], 1, 4)
    if kind == 'due:' then due = due + n
    elseif kind == 'held' then held = held >= 0 and held + n or held
    elseif ready >= 0 then ready = ready + n end
  end
  running, dead = call('HLEN', P .. 'run'), call('ZCARD', P .. 'dead')
end
local counts, last = call('HGETALL', P .. 'counts'), call('XREVRANGE', P .. 'events', '+', '-', 'COUNT', 1)
local sign = {}
for i = 1, #counts, 2 do sign[#sign + 1] = counts[i] .. '=' .. counts[i + 1] end
table.sort(sign)
sign[#sign + 1] = last[1] and last[1][1] or ''
return { 'OK', stamp, redis.sha1hex(table.concat(sign, ' ')), next_rank, due, ready, held, running, dead, counts }
