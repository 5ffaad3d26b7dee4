-- run/offer: notes which executor's inbox holds tasks that have not started yet, or whom they were handed to.
-- moves   running: claimed -> offered
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 pod, or the executor itself
--         3… id 16 + grant 18 + ms from now on that the grant is good, 8 digits, 0 for as it is + executor
-- gives   OK {stamp, a letter a row: K noted or not needed, C asked to cancel, Z stale; n × deadline}
-- bound   rows <= batch_max_rows
-- events  offered
-- memory  allow-oom
need('stream', 'events')
local records = {}
local letters, deadlines = hold(3, function(r, deadline, row)
  local phase, to = run_phase(r), sub(row, 43)
  local own = to == ARGV[2]
  if phase == 'c' or (own and phase == 'o') then
    -- An executor that has renewed it already knows better than a pod.
    if sub(row, 35, 42) == '00000000' or not (own or run_holder(r) == ARGV[2]) then deadline = sub(r, 4, 16) end
    if phase == 'c' then records[#records + 1] = sub(row, 1, 34) .. format('%02d', #to) .. to end
    return 'o' .. sub(r, 2, 3) .. deadline .. sub(r, 17, 40) .. to
  end
end)
if #records > 0 then emit('o', ARGV[2], table.concat(records)) end
return held(letters, deadlines)
