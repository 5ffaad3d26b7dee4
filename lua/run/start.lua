-- run/start: the handlers of granted tasks run, or are about to.
-- moves   running: claimed | offered -> started
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 executor  3… id 16 + grant 18 + lease in ms, 8 digits
-- gives   OK {stamp, a letter a row: K started, C started but asked to cancel, Z stale; n × deadline}
-- bound   rows <= batch_max_rows
-- events  started
-- memory  allow-oom
local who = ARGV[2]
need('stream', 'events')
local letters, deadlines, moved = hold(3, function(r, deadline)
  return 's' .. sub(r, 2, 3) .. deadline .. sub(r, 17, 40) .. who
end)
if #moved > 0 then emit('b', who, table.concat(moved)) end
return held(letters, deadlines)
