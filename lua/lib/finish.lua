-- lib/finish: the end of a task: what must go, what is remembered.
-- What ending a task would write.
local function need_end(id, spec)
  sized()
  need('hash', 'task:' .. shelf(id))
  need_recent()
  local version, flags = byte(spec, 1, 2)
  if version > 2 then
    if spec_bound(spec) then need('hash', 'tally') end
    if version > 4 then
      need('stream', 'outbox')
      need('hash', 'readers')
    end
  end
  if flags % 4 >= 2 then turns().need() end
  if flags % 16 ~= 0 then
    local o = spec_options(spec)
    if o.key then
      need('hash', 'keys:' .. o.shard)
      need('string', 'keyend:' .. key_values().hour(o.window))
    end
    if o.deadline then need('zset', 'timer:' .. format('%.0f', floor(o.deadline / 60000))) end
  end
end
-- Releases an idempotency key, or keeps it for its window.
local function key_end(id, o)
  local keys = P .. 'keys:' .. o.shard
  local v, mine = call('HGET', keys, o.name), key_values().of(id)
  if not v or sub(v, 1, 14) ~= mine then return end
  if o.window == 0 then call('HDEL', keys, o.name) return end
  call('HSET', keys, o.name, mine .. key_values().ended(now + o.window))
  local hour = key_values().hour(o.window)
  call('APPEND', P .. 'keyend:' .. hour, format('%02d%02d', o.shard, #o.name) .. o.name)
  call('ZADD', P .. 'agenda', hour * 60, 'k' .. hour)
end
-- Ends one task for good: spec, place record, key, timer. Place, run and counters are the caller's.
-- With `apart`, spec, place record and key are the caller's too, and that it is remembered; and so are timers, which are put
-- into it: key -> ids. Many go in one call.
local function finish(id, spec, letter, fence, text, apart)
  if not apart then
    specs_drop(shelf(id), { id })
    call('HDEL', P .. 'at', id)
    call('HDEL', P .. 'tries', id)
    remember(id .. letter .. fence)
  end
  local version, flags = byte(spec, 1, 2)
  if flags % 16 ~= 0 then
    local o = spec_options(spec)
    local timer = o.deadline and P .. 'timer:' .. format('%.0f', floor(o.deadline / 60000))
    if not apart then
      if o.key then key_end(id, o) end
      if timer then call('ZREM', timer, id) end
    elseif timer then
      local ids = apart[timer] or {}
      apart[timer], ids[#ids + 1] = ids, id
    end
  end
  if version > 2 then tally_bound(spec, -1) end
  if flags % 4 >= 2 then turns().ended(id, spec) end
  -- Specs above version 4 are of tasks whose end somebody wants to hear of.
  if version > 4 then announce(id, spec, letter, fence, text) end
end
