-- outcome/pass: a subscription has got outcomes up to an entry, or is about to get some.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 pod that plans a delivery, "" for what was got  3 subscription
--         4 where it is from now on: entry, a space, and more that only the caller understands
-- gives   OK {stamp, 1 if that stands, where it is}
-- bound   one field
-- events  none
-- memory  allow-oom
need('hash', 'readers')
local readers, new = P .. 'readers', ARGV[4]
local function place(text)
  local a, b = string.match(text, '^(%d+)-(%d+)')
  return tonumber(a or 0), tonumber(b or 0)
end
local old = call('HGET', readers, ARGV[3]) or ''
local a, b = place(old)
local c, d = place(new)
-- It only goes forward, whoever says so. Where it stays, a plan is that of the pod that delivers.
local forward = c > a or (c == a and d > b)
local plan = c == a and d == b and ARGV[2] ~= '' and call('HGET', readers, '#pod') == ARGV[2]
if not forward and not plan then return { 'OK', stamp, old == new and 1 or 0, old } end
call('HSET', readers, ARGV[3], new)
return { 'OK', stamp, 1, new }
