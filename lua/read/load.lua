-- read/load: how a bucket fares: what waits and since when, the lags of this minute and the last, what comes.
-- moves   none
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 minutes to look ahead
-- gives   OK {stamp, closed, gone, pending, running, ripe, oldest ripe due or "", this minute, its lags (flat: bin, count, …),
--         the last minute's lags, n × tasks due in a coming minute, from this one on}
-- bound   64 due sets that are due, 16 lanes a priority, 256 due sets to come, two minutes of lag
-- events  none
-- memory  no-writes
local ahead, minute = tonumber(ARGV[2]), floor(now / 60000)
local meta, counts = call('HMGET', KEYS[1], 'closed', 'gone'), call('HMGET', P .. 'counts', 'pending', 'running', 'ready')
local ripe, oldest = tonumber(counts[3] or 0), nil
local function head(key)
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  local due = first[2] and tonumber(first[2])
  if due and due <= now and not (oldest and oldest <= due) then oldest = due end
end
local stands, seen = call('SMEMBERS', P .. 'parked'), 0
for _, lane in ipairs(stands) do
  seen = seen + 1
  if seen > 256 then break end
  -- What may not be claimed waits for nobody here.
  ripe = ripe - call('ZCARD', P .. 'ready:' .. lane)
end
for p = 0, 5 do
  for _, lane in ipairs(call('ZRANGE', P .. 'ring:' .. p, 0, 15)) do
    if call('SISMEMBER', P .. 'parked', lane) == 0 then head(P .. 'ready:' .. lane) end
  end
end
local function is_set(name)
  local kind = sub(name, 1, 1)
  return kind ~= 't' and kind ~= 'k'
end
for _, name in ipairs(call('ZRANGE', P .. 'agenda', '-inf', minute, 'BYSCORE', 'LIMIT', 0, 64)) do
  if is_set(name) then
    for _, set in ipairs(due_sets(name)) do
      head(P .. 'due:' .. set)
      ripe = ripe + call('ZCOUNT', P .. 'due:' .. set, '-inf', now)
    end
  end
end
local coming = {}
for i = 1, ahead do coming[i] = 0 end
local found = call('ZRANGE', P .. 'agenda', minute, minute + ahead - 1, 'BYSCORE', 'LIMIT', 0, 256)
for _, name in ipairs(found) do
  if is_set(name) then
    local i = tonumber(string.match(name, '^%d+')) - minute + 1
    for _, set in ipairs(coming[i] and due_sets(name) or {}) do coming[i] = coming[i] + call('ZCARD', P .. 'due:' .. set) end
  end
end
local function lags(m) return call('HGETALL', P .. 'lag:' .. format('%.0f', m)) end
return {
  'OK', stamp, meta[1] and 1 or 0, meta[2] and 1 or 0, tonumber(counts[1] or 0), tonumber(counts[2] or 0),
  ripe > 0 and ripe or 0, oldest and format('%.0f', oldest) or '', minute, lags(minute), lags(minute - 1), unpack(coming),
}
