-- read/agenda: how many tasks a bucket has for each minute, from the sizes of its due sets.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 first minute  3 entries of it already told  4 last minute  5 most entries
-- gives   OK {stamp, next minute or -1, entries of it told, n × (minute, tasks)}
-- bound   the entries asked for, at most 1,000; their sizes only
-- events  none
-- memory  no-writes
local most = math.min(tonumber(ARGV[5]), 1000)
local names = call('ZRANGE', P .. 'agenda', ARGV[2], ARGV[4], 'BYSCORE', 'LIMIT', ARGV[3], most)
local out, last, told = { 'OK', stamp, -1, 0 }, tonumber(ARGV[2]), tonumber(ARGV[3])
for _, name in ipairs(names) do
  local kind = sub(name, 1, 1)
  local m = tonumber(string.match(name, '%d+'))
  -- A key's hour stands at its first minute.
  if kind == 'k' then m = m * 60 end
  if m == last then told = told + 1 else last, told = m, 1 end
  if kind ~= 't' and kind ~= 'k' then
    local n = 0
    for _, set in ipairs(due_sets(name)) do n = n + call('ZCARD', P .. 'due:' .. set) end
    if out[#out - 1] == m and #out > 4 then out[#out] = out[#out] + n
    else
      out[#out + 1] = m
      out[#out + 1] = n
    end
  end
end
if #names == most then out[3], out[4] = last, told end
return out
