-- run/renew: what an executor still holds stays granted to it.
-- moves   none: running tasks keep their phase and get a later deadline
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 executor  3… id 16 + grant 18 + lease in ms, 8 digits
-- gives   OK {stamp, a letter a row: K renewed, C renewed but asked to cancel, Z stale; n × deadline}
-- bound   rows <= batch_max_rows
-- events  none: a renewal is not a move
-- memory  allow-oom
local who = ARGV[2]
local letters, deadlines = hold(3, function(r, deadline) return sub(r, 1, 3) .. deadline .. sub(r, 17, 40) .. who end)
return held(letters, deadlines)
