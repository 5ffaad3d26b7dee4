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
  -- With keys of ours, both of them, since some commands take nothing else: asked for SET without one, Valkey 9.1
  -- crashes where the user has patterns. A server that does not know a command cannot have forbidden it.
  local known, may = pcall(redis.acl_check_cmd, ARGV[i], KEYS[1], KEYS[2])
  if known and may == false then out[#out + 1] = ARGV[i] end
end
return out
