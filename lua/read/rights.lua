-- read/rights: which commands the caller's user may not run.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2… names of commands
-- gives   OK {stamp, n × name of a command that the user may not run}
-- bound   names <= 200
-- events  none
-- memory  no-writes
local out = { 'OK', stamp }
for i = 2, #ARGV do
  -- Without a key the command alone is judged. A server that does not know it cannot have forbidden it.
  local known, may = pcall(redis.acl_check_cmd, ARGV[i])
  if known and may == false then out[#out + 1] = ARGV[i] end
end
return out
