-- read/trace: the event entries in which a task occurs, a stretch of the stream at a time.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 id, "" for every entry  3 after this entry, "-" from the start  4 entries looked at
-- gives   OK {stamp, last entry looked at or "", 1 if there may be more, entry trimmed last or "", moves trimmed (flat: letter, n),
--         n × (entry, kind, head, records)}
-- bound   entries looked at <= 500, and <= 2 MiB of them
-- events  none
-- memory  no-writes
local id, most, bytes = ARGV[2], tonumber(ARGV[4]), 0
if most > 500 then most = 500 end
local from = ARGV[3] == '-' and '-' or '(' .. ARGV[3]
local out = { 'OK', stamp, '', 1, call('HGET', KEYS[1], 'evtrim') or '', call('HGETALL', P .. 'cut') }
while most > 0 and bytes < 2097152 do
  local page = call('XRANGE', P .. 'events', from, '+', 'COUNT', most < 50 and most or 50)
  if #page == 0 then
    out[4] = 0
    break
  end
  for _, e in ipairs(page) do
    local records = e[2][6] or ''
    bytes = bytes + #records
    if id == '' or string.find(records, id, 1, true) then
      local n = #out
      out[n + 1], out[n + 2], out[n + 3], out[n + 4] = e[1], e[2][2], e[2][4], records
    end
    out[3] = e[1]
  end
  most = most - #page
  from = '(' .. out[3]
end
return out
