-- run/offer: notes which executor's inbox holds tasks that have not started yet.
-- moves   running: claimed -> offered
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 pod  3… id 16 + grant 18 + dispatch ms from now on, 8 digits, 0 for as it is + executor
-- gives   OK {stamp, a letter a row: K noted or not needed, C asked to cancel, Z stale; n × deadline}
-- bound   rows <= batch_max_rows
-- events  offered
-- memory  allow-oom
need('stream', 'events')
local records = {}
local letters, deadlines, moved = hold(3, function(r, deadline, row)
  if run_phase(r) == 'c' then
    local to = sub(row, 43)
    -- An executor that has renewed it already knows better.
    if sub(row, 35, 42) == '00000000' or run_holder(r) ~= ARGV[2] then deadline = sub(r, 4, 16) end
    records[#records + 1] = sub(row, 1, 34) .. format('%02d', #to) .. to
    return 'o' .. sub(r, 2, 3) .. deadline .. sub(r, 17, 40) .. to
  end
end)
if #moved > 0 then emit('o', ARGV[2], table.concat(records)) end
return held(letters, deadlines)
