-- run/mark: an executor keeps something for a task that it runs: how far it is, where to go on, what is done.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 id 16 + grant 18  3 field  4 value  5 most fields  6 most bytes of all  7 kept for s
-- gives   OK {stamp}  |  STALE {stamp}  |  FULL {stamp}
-- bound   one field
-- events  none
-- memory  refused when full
local id, field, value = sub(ARGV[2], 1, 16), ARGV[3], ARGV[4]
local key = P .. 'mark:' .. id
need_all('hash', 'run', 'mark:' .. id)
local r = call('HGET', P .. 'run', id)
if not r or run_grant(r) ~= sub(ARGV[2], 17, 34) then return { 'STALE', stamp } end
local before = call('HGET', key, field)
local old = before and #before + #field or 0
local bytes = tonumber(call('HGET', key, '#') or 0) - old + #value + #field
-- The count of bytes has a field of its own.
if bytes > tonumber(ARGV[6]) or (not before and call('HLEN', key) > tonumber(ARGV[5])) then return { 'FULL', stamp } end
call('HSET', key, field, value, '#', bytes)
call('EXPIRE', key, ARGV[7])
return { 'OK', stamp }
