-- lib/spec: reads a task's header at fixed offsets; src/model/spec.rs has the layout.
local function u16(s, i) local a, b = byte(s, i, i + 1) return a * 256 + b end
local function u32(s, i) local a, b, c, d = byte(s, i, i + 3) return ((a * 256 + b) * 256 + c) * 256 + d end
-- The version: 1, or 2 for one that has the usual retry policy and does not say it; 2 more where its queue had a bound for
-- tasks that have not ended when it was submitted: it counts until it ends; 4 more where somebody wants to hear of its end.
local function spec_rest(s) return byte(s, 1) % 2 == 0 and 9 or 22 end
local function spec_bound(s) return (byte(s, 1) - 1) % 4 >= 2 end
local function spec_lane(s) return sub(s, 3, 6) end
local function spec_due(id, s) return home(id) * 60000 + u16(s, 7) end
-- The option of an idempotency key is as long; its fields are shard 1, window 4, length 2, name 14 if it is longer than 13, key.
local function spec_key_len(s, at)
  local len = u16(s, at + 5)
  return len > 13 and 21 + len or 7 + len
end
-- The options: {shard, window_ms, key, name, plan, deadline, start_before}, each where the task has it. A key's name is its
-- field in the hash of keys.
local function spec_options(s)
  local flags, at, o = byte(s, 2), spec_rest(s), {}
  if flags % 2 >= 1 then
    local to, len = at + spec_key_len(s, at), u16(s, at + 5)
    o.shard, o.window, o.key = byte(s, at), u32(s, at + 1) * 1000, sub(s, to - len, to - 1)
    o.name = len > 13 and sub(s, at + 7, at + 20) or o.key
    at = to
  end
  if flags % 4 >= 2 then at = at + 2 + u16(s, at) end
  if flags % 8 >= 4 then
    local len = byte(s, at)
    o.plan = sub(s, at + 1, at + len)
    at = at + 1 + len
  end
  if flags % 16 >= 8 then o.deadline = u16(s, at) * 4294967296 + u32(s, at + 2) at = at + 6 end
  if flags % 32 >= 16 then o.start_before = u16(s, at) * 4294967296 + u32(s, at + 2) end
  return o
end
