-- run/start: the handlers of granted tasks run, or are about to.
-- moves   running: claimed | offered -> started
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 executor  3… id 16 + grant 18 + lease in ms, 8 digits, 0 for as it is
-- gives   OK {stamp, a letter a row: K started, C started but asked to cancel, Z stale; n × deadline}
-- bound   rows <= batch_max_rows
-- events  started, of those that were not
-- memory  allow-oom
local who = ARGV[2]
need('stream', 'events')
local fresh = {}
local letters, deadlines = hold(3, function(r, deadline, row)
  if sub(row, 35, 42) == '00000000' then deadline = sub(r, 4, 16) end
  if run_phase(r) ~= 's' then fresh[#fresh + 1] = sub(row, 1, 34) end
  return 's' .. sub(r, 2, 3) .. deadline .. sub(r, 17, 40) .. who
end)
if #fresh > 0 then emit('b', who, table.concat(fresh)) end
return held(letters, deadlines)
