-- member/recall: takes offers of frozen queues back out of an executor's inbox.
-- moves   none (the caller hands them back)
-- keys    1 {namespace:x:executor}:meta   2 …:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 "1": all  3… groups (4 bytes each)
-- gives   OK {stamp, offers}
-- bound   an inbox holds at most its capacity
-- events  none
-- memory  allow-oom
local all, groups = ARGV[2] == '1', {}
for i = 3, #ARGV do groups[ARGV[i]] = true end
-- An offer: version 1, id 16, grant 18, group 4, and more.
local function frozen(o) return all or groups[sub(o, 36, 39)] end
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
call('HSET', SLOTS, 'bytes', bytes)
-- The executor gives back what it holds and has not started.
call('SPUBLISH', P .. 'wake', 'f')
return out
