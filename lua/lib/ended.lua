-- lib/ended: idempotency keys of a whole batch of tasks that end.
-- Of tasks that have a key and still their specs: what is to be written, by hash and by hour. Reads and checks only;
-- keys_end writes.
local function keys_ending(ids)
  local by, shards, ends, times, values = {}, {}, { hashes = {}, hours = {} }, {}, key_values()
  for _, id in ipairs(ids) do
    local m = shelf(id)
    local b = by[m]
    if not b then
      b = { n = 0 }
      by[m] = b
    end
    b.n = b.n + 1
    b[b.n] = id
  end
  for m, b in pairs(by) do
    local specs = call('HMGET', P .. 'task:' .. m, unpack(b))
    for i = 1, b.n do
      local spec = specs[i]
      if spec and byte(spec, 2) % 2 == 1 then
        local k0 = spec_rest(spec)
        local number, window, len = byte(spec, k0), u32(spec, k0 + 1), u16(spec, k0 + 5)
        local s = shards[number]
        if not s then
          s = { n = 0, keys = {}, ids = {}, windows = {} }
          shards[number] = s
        end
        local k = s.n + 1
        s.n, s.keys[k], s.ids[k], s.windows[k] = k, sub(spec, k0 + 7, k0 + 6 + (len > 13 and 14 or len)), values.of(b[i]), window
      end
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
