-- bucket/vanish: a closed bucket in which nothing is left goes, but for its mark and its counters.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 ms that it must have been closed for
-- gives   OK {stamp, gone | open | young | what is left: agenda, run, dead, ready, parked, at, outbox, counts}
-- bound   the ends of one bucket: its lists of seconds and tens of seconds, at most 5,000 names
-- events  none
-- memory  allow-oom
need('hash', 'meta')
need_all('hash', 'run', 'at', 'counts', 'tries', 'lock', 'readers')
need('stream', 'outbox')
need_all('zset', 'agenda', 'dead', 'leases', 'recents')
need('set', 'parked')
local meta = call('HMGET', KEYS[1], 'closed', 'gone')
if not meta[1] then return { 'OK', stamp, 'open' } end
if meta[2] then return { 'OK', stamp, 'gone' } end
if tonumber(meta[1]) + tonumber(ARGV[2]) > now then return { 'OK', stamp, 'young' } end
for _, name in ipairs({ 'agenda', 'run', 'dead', 'parked', 'at' }) do
  if needed[name] > 0 then return { 'OK', stamp, name } end
end
-- Outcomes that nobody has fetched are waited for, but not for ever.
if needed.outbox > 0 then
  local last = call('XREVRANGE', P .. 'outbox', '+', '-', 'COUNT', 1)[1][1]
  if tonumber(string.match(last, '^%d+')) + 86400000 > now then return { 'OK', stamp, 'outbox' } end
end
for p = 0, 5 do
  if need('zset', 'ring:' .. p) > 0 then return { 'OK', stamp, 'ready' } end
end
for _, c in ipairs(call('HMGET', P .. 'counts', 'waiting', 'pending', 'running', 'dead', 'ready')) do
  if c and tonumber(c) ~= 0 then return { 'OK', stamp, 'counts' } end
end
local gone, minute = { P .. 'events', P .. 'tries', P .. 'leases', P .. 'recents', P .. 'lock' }, floor(now / 60000)
local function list(names, before)
  for _, name in ipairs(names) do gone[#gone + 1] = P .. before .. name end
end
list(call('ZRANGE', P .. 'leases', 0, 1999), 'lease:')
list(call('ZRANGE', P .. 'recents', 0, 1999), 'recent:')
list(call('HKEYS', P .. 'lock'), 'last:')
list({ 'tally', 'cut', 'kept', 'looks', 'turns', 'flight', 'spent', 'newest', 'outbox', 'readers', 'bytes' }, '')
for m = minute - 11, minute do gone[#gone + 1] = P .. 'lag:' .. format('%.0f', m) end
-- Where a list is longer, the rest of it goes the next time.
local whole = needed.leases <= 2000 and needed.recents <= 2000
if whole then
  call('UNLINK', unpack(gone))
  for _, field in ipairs(call('HKEYS', KEYS[1])) do
    if field ~= 'closed' and field ~= 'v' then call('HDEL', KEYS[1], field) end
  end
  call('HSET', KEYS[1], 'gone', now13)
  return { 'OK', stamp, 'gone' }
end
for i = 6, #gone do call('UNLINK', gone[i]) end
call('ZREMRANGEBYRANK', P .. 'leases', 0, 1999)
call('ZREMRANGEBYRANK', P .. 'recents', 0, 1999)
return { 'OK', stamp, 'counts' }
