-- member/take: an executor takes offers out of its inbox and says what it has in hand.
-- moves   none
-- keys    1 {namespace:x:executor}:meta   2 …:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 free normal slots  3 room for urgent ones only  4 in hand (popped, not finished), without urgent ones that have room of their own
--         5 capacity, 0 to leave  6 alive for ms  7 capacity for urgent ones only
-- gives   OK {stamp, more waiting, n hungry pods, pods, urgent offers, other offers}: the last two are lists
-- bound   offers <= batch_max_rows, and as many as have 2 MiB by their average size
-- events  none
-- memory  allow-oom
local most, most_urgent, hand, cap = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local before = tonumber(call('HGET', SLOTS, 'bytes') or 0)
if before > 2097152 then
  local few = floor((call('LLEN', P .. 'inbox') + call('LLEN', P .. 'urgent')) * 2097152 / before)
  if few < 1 then few = 1 end
  if most > few then most = few end
  if most_urgent > few - most then most_urgent = few - most end
end
local function pop(key, n) return n > 0 and call('LPOP', key, n) or {} end
-- Urgent offers may use every slot, the others only normal ones.
local urgent = pop(P .. 'urgent', most + most_urgent)
local beyond = #urgent > most_urgent and #urgent - most_urgent or 0
local normal = pop(P .. 'inbox', most - beyond)
local waiting = call('LLEN', P .. 'inbox') + call('LLEN', P .. 'urgent')
local left = 0
if waiting > 0 then
  left = before
  for _, o in ipairs(urgent) do left = left - #o end
  for _, o in ipairs(normal) do left = left - #o end
end
call('HSET', SLOTS, 'hand', hand + beyond + #normal, 'bytes', left > 0 and left or 0, 'cap', cap, 'ucap', ARGV[7],
  'till', cap == 0 and '0' or format('%013.0f', now + tonumber(ARGV[6])), 'nap', waiting == 0 and '1' or '0')
local s = room()
local out = { 'OK', stamp, waiting }
if s.free > 0 then
  out[4] = #s.hungry
  for _, pod in ipairs(s.hungry) do
    out[#out + 1] = pod
    call('HDEL', SLOTS, 'h:' .. pod)
  end
else
  out[4] = 0
end
-- Nothing is left behind of one that has gone.
if cap == 0 and waiting == 0 then call('DEL', SLOTS) end
out[#out + 1] = urgent
out[#out + 1] = normal
return out
