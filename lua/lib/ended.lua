-- lib/ended: specs, idempotency keys and time-outs of a whole batch of tasks that end.
-- The specs of those that still have one, by id: one call an hour.
local function specs_of(ids)
  local by, specs = {}, {}
  for _, id in ipairs(ids) do
    local m = shelf(id)
    local b = by[m]
    if not b then
      b = {}
      by[m] = b
    end
    b[#b + 1] = id
  end
  for m, b in pairs(by) do
    local found = call('HMGET', P .. 'task:' .. m, unpack(b))
    for i, id in ipairs(b) do specs[id] = found[i] or nil end
  end
  return specs
end
-- Of tasks that have a key and still their specs: what is to be written, by hash and by hour. Reads and checks only;
-- keys_end writes.
local function keys_ending(ids, specs)
  local shards, ends, times, values = {}, { hashes = {}, hours = {} }, {}, key_values()
  for _, id in ipairs(ids) do
    local spec = specs[id]
    if spec and byte(spec, 2) % 2 == 1 then
      local k0 = spec_rest(spec)
      local number, window, len = byte(spec, k0), u32(spec, k0 + 1), u16(spec, k0 + 5)
      local s = shards[number]
      if not s then
        s = { n = 0, keys = {}, ids = {}, windows = {} }
        shards[number] = s
      end
      local k = s.n + 1
      s.n, s.keys[k], s.ids[k], s.windows[k] = k, sub(spec, k0 + 7, k0 + 6 + (len > 13 and 14 or len)), values.of(id), window
    end
  end
  for number, s in pairs(shards) do
    need('hash', 'keys:' .. number)
    local key, drop, keep, d, k = P .. 'keys:' .. number, {}, {}, 0, 0
    local found, heads = call('HMGET', key, unpack(s.keys)), {}
    for i = 1, s.n do
      local v, id, field, window = found[i], s.ids[i], s.keys[i], s.windows[i]
      if v and sub(v, 1, 14) == id then
        if window == 0 then
          d = d + 1
          drop[d] = field
        else
          local t = times[window]
          if not t then
            t = { till = values.ended(now + window * 1000), hour = values.hour(window * 1000) }
            times[window] = t
          end
          keep[k + 1], keep[k + 2] = field, id .. t.till
          k = k + 2
          local h = ends.hours[t.hour]
          if not h then
            need('string', 'keyend:' .. t.hour)
            h = { n = 0 }
            ends.hours[t.hour] = h
          end
          local head = heads[#field]
          if not head then
            head = format('%02d%02d', number, #field)
            heads[#field] = head
          end
          h[h.n + 1], h[h.n + 2] = head, field
          h.n = h.n + 2
        end
      end
    end
    ends.hashes[key] = { drop = drop, keep = keep }
  end
  return ends
end
local function keys_end(ends)
  for key, fields in pairs(ends.hashes) do
    if fields.drop[1] then call('HDEL', key, unpack(fields.drop)) end
    if fields.keep[1] then call('HSET', key, unpack(fields.keep)) end
  end
  for hour, parts in pairs(ends.hours) do
    call('APPEND', P .. 'keyend:' .. hour, table.concat(parts))
    call('ZADD', P .. 'agenda', hour * 60, 'k' .. hour)
  end
end
-- The timers of tasks that have a total time-out: key -> ids. Nothing where one of them has more to clear away than its
-- key and that, or no spec. Reads and checks only.
local function timers_ending(ids, specs)
  local timers, by = {}, {}
  for _, id in ipairs(ids) do
    local spec = specs[id]
    local version, flags = byte(spec or '\9', 1, 2)
    if version > 4 or flags % 4 >= 2 then return end
    if flags % 16 >= 8 then
      local at = spec_rest(spec)
      if flags % 2 == 1 then at = at + spec_key_len(spec, at) end
      if flags % 8 >= 4 then at = at + 1 + byte(spec, at) end
      local minute = floor((u16(spec, at) * 4294967296 + u32(spec, at + 2)) / 60000)
      local late = by[minute]
      if not late then
        late = {}
        by[minute] = late
      end
      late[#late + 1] = id
    end
  end
  for minute, late in pairs(by) do
    local name = 'timer:' .. format('%.0f', minute)
    need('zset', name)
    timers[P .. name] = late
  end
  return timers
end
