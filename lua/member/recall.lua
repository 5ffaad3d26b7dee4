-- member/recall: takes offers of frozen queues and plans back out of an executor's inbox.
-- moves   none (the caller hands them back)
-- keys    1 {namespace:x:executor}:meta   2 …:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 "1": all  3 epoch of the freeze  4 n, n × group (4 bytes)  then plans
-- gives   OK {stamp, offers}
-- bound   an inbox holds at most its capacity
-- events  none
-- memory  allow-oom
local all, groups, plans, n = ARGV[2] == '1', {}, {}, tonumber(ARGV[4])
for i = 5, #ARGV do
  if i <= 4 + n then groups[ARGV[i]] = true else plans[ARGV[i]] = true end
end
-- An offer: version 1, id 16, grant 18, group 4, urgent 1, due 8, attempt 4, not after 8, spec.
local function frozen(o)
  if all or groups[sub(o, 36, 39)] then return true end
  if byte(o, 62) % 8 < 4 or not next(plans) then return false end
  return plans[spec_options(sub(o, 61)).plan]
end
local out, bytes = { 'OK', stamp }, 0
for _, name in ipairs({ 'inbox', 'urgent' }) do
  local list = P .. name
  local keep, took = {}, false
  for _, o in ipairs(call('LRANGE', list, 0, -1)) do
    if frozen(o) then
      out[#out + 1] = o
      took = true
    else
      keep[#keep + 1] = o
      bytes = bytes + #o
    end
  end
  if took then
    call('DEL', list)
    for i = 1, #keep, 1000 do
      call('RPUSH', list, unpack(keep, i, i + 999 < #keep and i + 999 or #keep))
    end
  end
end
-- What pods still send that have not heard of this freeze is refused for a while.
call('HSET', SLOTS, 'bytes', bytes, 'epoch', ARGV[3], 'epochtill', format('%013.0f', now + 10000))
-- The executor gives back what it holds and has not started.
call('SPUBLISH', P .. 'wake', 'f')
return out
