-- lib/finish: the end of a task: what must go, what is remembered.
local function key_hour(o) return format('%.0f', floor((now + o.window) / 3600000) + 1) end
-- What ending a task would write.
local function need_end(id, spec)
  need('hash', 'task:' .. home(id))
  need_recent()
  if byte(spec, 2) % 16 ~= 0 then
    local o = spec_options(spec)
    if o.key then
      need('hash', 'keys:' .. o.shard)
      need('string', 'keyend:' .. key_hour(o))
    end
    if o.deadline then need('zset', 'timer:' .. format('%.0f', floor(o.deadline / 60000))) end
  end
end
-- Releases an idempotency key, or keeps it for its window.
local function key_end(id, o)
  local keys = P .. 'keys:' .. o.shard
  local v = call('HGET', keys, o.key)
  if not v or sub(v, 1, 16) ~= id then return end
  if o.window == 0 then call('HDEL', keys, o.key) return end
  local till = now + o.window
  call('HSET', keys, o.key, id .. 'E' .. format('%013.0f', till))
  local hour = key_hour(o)
  call('APPEND', P .. 'keyend:' .. hour, format('%02d%04d', o.shard, #o.key) .. o.key)
  call('ZADD', P .. 'agenda', hour * 60, 'k' .. hour)
end
-- Ends one task for good: spec, place record, key, timer. Place, run and counters are the caller's.
local function finish(id, spec, letter, fence)
  call('HDEL', P .. 'task:' .. home(id), id)
  call('HDEL', P .. 'at', id)
  call('HDEL', P .. 'tries', id)
  if byte(spec, 2) % 16 ~= 0 then
    local o = spec_options(spec)
    if o.key then key_end(id, o) end
    if o.deadline then call('ZREM', P .. 'timer:' .. format('%.0f', floor(o.deadline / 60000)), id) end
  end
  remember(id .. letter .. fence)
end
