-- lib/audit: what must hold for one task, judged in one moment.
-- `judge` adds to `found` what does not: kind, id, key (behind the tag), detail, member.
local found, broken = {}, false
-- A key of another type than it should have is reported by its name; what hangs on it is not judged.
local function look(...)
  local v = redis.pcall(...)
  if type(v) == 'table' and v.err then
    broken = true
    return false
  end
  return v
end
-- `member`: what stands for the task in that key, where the finding is about the two of them.
local function say(kind, id, key, detail, member)
  local n = #found
  found[n + 1], found[n + 2], found[n + 3], found[n + 4], found[n + 5] = kind, id, key, detail, member or ''
end
-- The name of a long key in the hash of keys.
local function key_digest(key)
  return (string.gsub(sub(redis.sha1hex(key), 1, 28), '%x%x', function(hex) return string.char(tonumber(hex, 16)) end))
end
local function id_ok(id) return #id == 16 and string.find(id, '^[%w_%-]+$') ~= nil end
local function lane_ok(lane)
  if #lane ~= 4 or not string.find(lane, '^[%w_%-]+$') then return false end
  local d = digit(sub(lane, 4, 4))
  return d < 48 and d % 8 < 7
end
local function spec_ok(s)
  local n = #s
  local version = byte(s, 1)
  if n < spec_rest(s) - 1 or version < 1 or version > 8 or (version % 2 == 1 and byte(s, 10) > 2) or not lane_ok(sub(s, 3, 6)) or u16(s, 7) > 59999 then return false end
  local flags, at = byte(s, 2), spec_rest(s)
  if flags % 2 >= 1 then
    if at + 6 > n then return false end
    at = at + spec_key_len(s, at)
  end
  if flags % 4 >= 2 then
    if at + 1 > n then return false end
    at = at + 2 + u16(s, at)
  end
  if flags % 8 >= 4 then
    if at > n then return false end
    at = at + 1 + byte(s, at)
  end
  if flags % 16 >= 8 then at = at + 6 end
  if flags % 32 >= 16 then at = at + 6 end
  if flags % 64 >= 32 then at = at + 4 end
  if flags % 128 >= 64 then at = at + 4 end
  if flags >= 128 then
    if at + 1 > n then return false end
    at = at + 2 + u16(s, at)
  end
  return at <= n + 1
end
local function at_ok(r) return #r == 31 and string.find(r, '^%d+[%w_%-]+$') ~= nil and lane_ok(sub(r, 14, 17)) and string.find(sub(r, 18), '^%x+$') ~= nil end
local function run_ok(r)
  return #r >= 40 and string.find(r, '^[cos][C%-][0-o]%d%d%d%d%d%d%d%d%d%d%d%d%d%x+') ~= nil and lane_ok(sub(r, 37, 40))
end
local function lease_key(deadline) return P .. lease_name(deadline) end
-- Whether one of its lease strings still names a running task.
local function leased(id, r)
  local key, at = lease_key(run_deadline(r)), 0
  local len = look('STRLEN', key) or 0
  while at < len do
    local piece, from = look('GETRANGE', key, at, at + 65535), 1
    while true do
      local hit = string.find(piece, id, from, true)
      if not hit then break end
      if (hit - 1) % 16 == 0 then return true end
      from = hit + 1
    end
    at = at + 65536
  end
  return false
end
-- `place` and `member`: where the task was met, if in a due set or lane. `lease` asks for its lease string too.
local function judge(id, place, member, spec, lease)
  broken = false
  local task = 'task:' .. shelf(id)
  if spec == nil then spec = look('HGET', P .. task, id) end
  local r, dead, raw = look('HGET', P .. 'run', id), look('ZSCORE', P .. 'dead', id), look('HGET', P .. 'at', id)
  local met = place and look('ZSCORE', P .. place, member)
  if broken then return end
  if not spec then
    local before = #found
    if met then say('due_without_spec', id, place, 'there is no ' .. task .. ' of it', member) end
    if r then say('run_without_spec', id, 'run', 'held by ' .. run_holder(r)) end
    if dead then say('dead_without_spec', id, 'dead', 'it cannot be redriven') end
    if #found == before then
      if raw then say('at_without_spec', id, 'at', 'the task has ended') end
      if look('HEXISTS', P .. 'tries', id) == 1 then say('tries_without_spec', id, 'tries', 'the task has ended') end
    end
    return
  end
  if not spec_ok(spec) then return say('spec_unreadable', id, task, #spec .. ' bytes that are not a spec of version 1') end
  if raw and not at_ok(raw) then return say('record_unreadable', id, 'at', 'not a place record') end
  if r and not run_ok(r) then return say('record_unreadable', id, 'run', 'not the record of a grant') end
  local at = raw and at_read(raw) or { due = spec_due(id, spec), lane = spec_lane(spec) }
  local base = due_base(format('%.0f', floor(at.due / 60000)), at.lane)
  local second = due_second(base, at.due)
  local places, stray = {}, met and place or nil
  local plan = plan_of(spec)
  for _, name in ipairs({ 'due:' .. base, 'due:' .. second, 'due:' .. due_fine(second, id), 'ready:' .. at.lane, plan and 'held:' .. plan }) do
    if look('ZSCORE', P .. name, sub(name, 1, 6) == 'ready:' and id or id .. at.lane) then
      places[#places + 1] = name
      if name == place then stray = nil end
    end
  end
  if placed(spec) and look('ZSCORE', P .. 'kept', turns().member(turns().name(spec), id, at.due, at.lane)) then
    places[#places + 1] = 'kept'
    if place == 'kept' then stray = nil end
  end
  if r then places[#places + 1] = 'run' end
  if dead then places[#places + 1] = 'dead' end
  if broken then return end
  if stray then places[#places + 1] = stray end
  if #places == 0 then
    say('spec_without_place', id, task, 'in no due set, lane, run or dead')
  elseif #places > 1 then
    say('two_places', id, stray or places[1], 'in ' .. table.concat(places, ' and '), stray and member)
  elseif stray then
    say('wrong_place', id, stray, 'expected in due:' .. base .. ' or ready:' .. at.lane, member)
  end
  if r and lease and not leased(id, r) then
    say('run_without_lease', id, 'run', 'not in ' .. sub(lease_key(run_deadline(r)), #P + 1) .. '; held by ' .. run_holder(r))
  end
  if dead then
    if look('EXISTS', P .. 'dead:' .. id) == 0 then say('dead_without_letter', id, 'dead:' .. id, 'its reason and attempts are lost') end
  elseif #places > 0 and byte(spec, 2) % 16 ~= 0 then
    local o = spec_options(spec)
    if o.key then
      local v = look('HGET', P .. 'keys:' .. o.shard, o.name)
      if not broken and v ~= key_values().of(id) then say('key_missing', id, 'keys:' .. o.shard, 'its idempotency key does not name it') end
      if o.name ~= o.key and o.name ~= key_digest(o.key) then say('key_missing', id, 'keys:' .. o.shard, 'it lies under a name that its idempotency key does not have') end
    end
    if o.deadline and o.deadline > lease_clock() then
      local name = 'timer:' .. format('%.0f', floor(o.deadline / 60000))
      local fires = look('ZSCORE', P .. name, id)
      if not broken and not fires then say('timer_missing', id, name, 'it would not expire') end
    end
  end
end
