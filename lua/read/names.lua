-- read/names: the types and sizes of keys, and whether what must list them does.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2… names behind the tag
-- gives   OK {stamp, n × (type, elements or bytes, 0 if the agenda, ring, dead or helds should list it and does not)}
-- bound   names <= 500
-- events  none
-- memory  no-writes
local SIZE = { zset = 'ZCARD', hash = 'HLEN', set = 'SCARD', string = 'STRLEN', stream = 'XLEN', list = 'LLEN' }
local function lists(key, member)
  local v = redis.pcall('ZSCORE', P .. key, member)
  return v and 1 or 0
end
local out = { 'OK', stamp }
for i = 2, #ARGV do
  local name = ARGV[i]
  local kind, rest, entry = string.match(name, '^(%a+):(.*)$')
  local t = call('TYPE', P .. name).ok
  local size = SIZE[t] and call(SIZE[t], P .. name) or 0
  if kind == 'due' then entry = lists('agenda', listed(rest))
  elseif kind == 'timer' then entry = lists('agenda', 't' .. rest)
  elseif kind == 'keyend' then entry = lists('agenda', 'k' .. rest)
  elseif kind == 'recent' then entry = lists('recents', rest)
  elseif kind == 'held' then entry = lists('helds', rest)
  elseif kind == 'lease' then entry = lists('leases', rest)
  elseif kind == 'dead' then entry = lists('dead', rest)
  elseif kind == 'ready' and #rest == 4 and string.find(rest, '^[%w_%-]+$') then
    entry = lists('ring:' .. level(rest), rest)
    if entry == 0 then
      local v = redis.pcall('SISMEMBER', P .. 'parked', rest)
      entry = v ~= 0 and 1 or 0
    end
  else entry = 1 end
  local n = #out
  out[n + 1], out[n + 2], out[n + 3] = t, size, t == 'none' and 1 or entry
end
return out
