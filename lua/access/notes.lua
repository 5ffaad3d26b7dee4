-- access/notes: what operators did, the latest first.
-- moves   none
-- keys    1 {namespace:access}:meta   2 {namespace:access}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 before this note, "" from the latest on  3 most
-- gives   OK {stamp, n × (id, at, who, action, target, detail)}
-- bound   as many as asked for
-- events  none
-- memory  no-writes
local from = ARGV[2] == '' and '+' or '(' .. ARGV[2]
local out = { 'OK', stamp }
for _, note in ipairs(call('XREVRANGE', P .. 'notes', from, '-', 'COUNT', ARGV[3])) do
  out[#out + 1] = note[1]
  for i = 2, 10, 2 do out[#out + 1] = note[2][i] or '' end
end
return out
