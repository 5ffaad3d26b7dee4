-- member/offer: a pod puts granted tasks into an executor's inbox, as many as there is room for.
-- moves   none (the grant's phase is in the bucket)
-- keys    1 {namespace:x:executor}:meta   2 …:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 pod  3 reservation wanted afterwards, 0 if nothing waits  4 reservation lasts ms  5 bytes allowed in the inbox
--         6 n of urgent offers  7 bytes of all offers  8 epoch of the freeze that the pod follows
--         9… offers, urgent ones first
-- gives   OK {stamp, first urgent ones accepted, first others accepted, reserved afterwards, free and unreserved, room left for urgent ones beyond that}  |  GONE {stamp}: the executor is lost or leaves
--         FROZEN {stamp}: something was frozen that the pod has not heard of
-- bound   offers <= batch_max_rows; inbox <= its capacity and bytes
-- events  none
-- memory  allow-oom
local args = ARGV
local pod, want, n = args[2], tonumber(args[3]), #args - 8
local s = room()
if not s.till or s.till < now then return { 'GONE', stamp } end
if s.epoch and s.epoch > tonumber(args[8]) and s.epochtill > now and n > 0 then return { 'FROZEN', stamp } end
local reserved = s.mine[pod] or 0
local may, bytes = reserved + (s.free > 0 and s.free or 0), s.bytes or 0
-- Urgent ones may also use the slots kept for them.
local split, before = tonumber(args[6]), call('LLEN', P .. 'urgent')
local spare = (s.ucap or 0) - before
if spare < 0 then spare = 0 end
local urgent, normal = 0, 0
local most, size_all = tonumber(args[5]), tonumber(args[7])
if split <= may + spare and n - split <= may - (split > spare and split - spare or 0) and bytes + size_all <= most then
  -- As a rule all fit: then none is looked at.
  urgent, normal, bytes = split, n - split, bytes + size_all
else
  for i = 1, n do
    local size = #args[8 + i]
    local room_left = i <= split and may + spare or may - (urgent > spare and urgent - spare or 0) - normal
    if (i <= split and urgent >= room_left) or (i > split and room_left <= 0) then
      if i > split then break end
    elseif bytes + size > most and bytes > 0 then break
    elseif i <= split then
      bytes, urgent = bytes + size, urgent + 1
    else
      bytes, normal = bytes + size, normal + 1
    end
  end
end
if urgent > 0 then call('RPUSH', P .. 'urgent', unpack(args, 9, 8 + urgent)) end
if normal > 0 then call('RPUSH', P .. 'inbox', unpack(args, 9 + split, 8 + split + normal)) end
local rest = may - normal - (urgent > spare and urgent - spare or 0)
local keep = want < rest and want or rest
if keep > 0 then call('HSET', SLOTS, 'r:' .. pod, format('%06.0f%013.0f', keep, now + tonumber(ARGV[4])))
else call('HDEL', SLOTS, 'r:' .. pod) end
-- A pod that has tasks waiting and little room left is told when there is more.
if keep < math.ceil(want / 4) then call('HSET', SLOTS, 'h:' .. pod, format('%013.0f', now + 60000))
elseif #s.hungry > 0 then call('HDEL', SLOTS, 'h:' .. pod) end
if urgent + normal > 0 then
  -- An executor all of whose slots are taken has others for urgent ones: it hears of the first.
  if s.nap == 1 or (urgent > 0 and before == 0) then
    call('HSET', SLOTS, 'bytes', bytes, 'nap', '0')
    call('SPUBLISH', P .. 'wake', urgent > 0 and 'u' or 'i')
  else
    call('HSET', SLOTS, 'bytes', bytes)
  end
end
return { 'OK', stamp, urgent, normal, keep, rest - keep, urgent < spare and spare - urgent or 0 }
