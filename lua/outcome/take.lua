-- outcome/take: one pod delivers the outcomes of a bucket; what all subscriptions have passed goes.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 pod  3 lease in ms, 0 lets go  4… names of all subscriptions
-- gives   OK {stamp, 1 if the pod may deliver, entries, last entry or "", when the oldest was made or 0, n × (where the subscription is, or "")}
-- bound   subscriptions <= subscriptions_max; the entries of one outbox
-- events  none
-- memory  allow-oom
need('stream', 'outbox')
need('hash', 'readers')
local box, readers, lnow = P .. 'outbox', P .. 'readers', lease_clock()
local lease, n = tonumber(ARGV[3]), #ARGV - 3
local v = call('HMGET', readers, '#pod', '#until')
local till = tonumber(v[2] or 0)
local free = not v[1] or v[1] == ARGV[2] or till <= lnow or till > lnow + 600000
if free and lease == 0 then
  if v[1] then call('HDEL', readers, '#pod', '#until') end
  return { 'OK', stamp, 0, 0, '', 0 }
end
local out = { 'OK', stamp, free and 1 or 0, needed.outbox, '', 0 }
-- A bucket in which nothing lies costs no write.
if not free or needed.outbox == 0 then return out end
call('HSET', readers, '#pod', ARGV[2], '#until', format('%.0f', lnow + lease))
local known, names = {}, call('HKEYS', readers)
local at = n > 0 and call('HMGET', readers, unpack(ARGV, 4)) or {}
local ms, seq
for i = 1, n do
  known[ARGV[3 + i]] = true
  out[6 + i] = at[i] or ''
  local a, b = string.match(at[i] or '0-0', '^(%d+)-(%d+)')
  a, b = tonumber(a), tonumber(b)
  if not ms or a < ms or (a == ms and b < seq) then ms, seq = a, b end
end
for _, name in ipairs(names) do
  if sub(name, 1, 1) ~= '#' and not known[name] then call('HDEL', readers, name) end
end
-- Where nobody wants to hear any more, nothing is kept.
if n == 0 then call('UNLINK', box)
elseif ms > 0 then call('XTRIM', box, 'MINID', format('%.0f-%.0f', ms, seq + 1)) end
out[4] = call('XLEN', box)
local first, last = call('XRANGE', box, '-', '+', 'COUNT', 1)[1], call('XREVRANGE', box, '+', '-', 'COUNT', 1)[1]
if last then
  out[5] = last[1]
  out[6] = tonumber(string.match(first[1], '^%d+'))
end
return out
