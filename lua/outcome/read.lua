-- outcome/read: a stretch of a bucket's outbox, and where a subscription is.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 subscription  3 after this entry, "" from where it is  4 up to this entry, "+" for all  5 entries
-- gives   OK {stamp, where the subscription is or "", outcomes cut off so far, the last of them or "", n × (entry, record)}
-- bound   entries <= 500, and <= 1 MiB of them
-- events  none
-- memory  no-writes
local v = call('HMGET', P .. 'readers', ARGV[2], '#cut', '#cutat')
local after, most, bytes = ARGV[3], tonumber(ARGV[5]), 0
if after == '' then after = v[1] and string.match(v[1], '^%S+') or '-' end
if most > 500 then most = 500 end
local out = { 'OK', stamp, v[1] or '', tonumber(v[2] or 0), v[3] or '' }
for _, e in ipairs(call('XRANGE', P .. 'outbox', after == '-' and '-' or '(' .. after, ARGV[4], 'COUNT', most)) do
  local record, n = e[2][2] or '', #out
  bytes = bytes + #record
  if bytes > 1048576 and n > 5 then break end
  out[n + 1], out[n + 2] = e[1], record
end
return out
