-- lib/base: the bucket's prefix, this call's time, and names used everywhere.
-- ARGV[1] is the time in ms that a test injects; "" asks Redis.
local call, sub, byte, format, floor = redis.call, string.sub, string.byte, string.format, math.floor
local P = sub(KEYS[1], 1, -5)
local now, stamp = tonumber(ARGV[1]), nil
if now then
  stamp = format('%.0f000', now)
else
  local t = call('TIME')
  now = t[1] * 1000 + floor(t[2] / 1000)
  stamp = t[1] .. format('%06d', t[2])
end
local now13 = format('%013.0f', now)
-- The clock of leases and of what is remembered: it never runs backwards. After the server's clock has gone back it
-- goes on from where it was, ahead by `skew`, and slowly (`due/claim`) until the server's has caught up.
local lease_now
-- Whether bytes are counted (lib/size); nil where that was not asked for yet.
local sized_flag
local function lease_clock()
  if not lease_now then
    local seen = call('HMGET', KEYS[1], 'clock', 'skew', 'sized')
    local clock, ahead = tonumber(seen[1] or 0), now + tonumber(seen[2] or 0)
    lease_now = clock > ahead and clock or ahead
    sized_flag = seen[3]
  end
  return lease_now
end
