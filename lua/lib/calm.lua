-- lib/calm: the answer of a claim that has nothing to do: most visits of quiet buckets. It stands before everything
-- else, since even to make the other fragments' functions costs more than this.
-- Longest sleep of a pod whose bucket has nothing in hand; it is woken before, and looks after its wake-ups meanwhile.
local REST = 30000
-- What is kept for a while is looked after at least this often where there is some.
local KEEP = 10000
do
  local lock, pod, peek = P .. 'lock', ARGV[2], redis.pcall
  -- Where there are limits the claim itself says what was spent.
  local plan_at = 29 + 3 * tonumber(ARGV[28])
  local limited = ARGV[plan_at + 3 + tonumber(ARGV[plan_at + 1])]
  local meta = peek('HMGET', KEYS[1], 'clock', 'evb', 'kept', 'v', 'held', 'skew')
  local mine, busy = peek('HGET', lock, pod), peek('HMGET', P .. 'counts', 'running', 'ready')
  -- What cannot be read is for the claim itself to complain of.
  local calm = type(mine) == 'string' and sub(mine, 1, 16) == ARGV[3] and not limited and not meta.err and meta[4] and not meta[5] and not busy.err
    and (busy[1] or '0') == '0' and (busy[2] or '0') == '0'
    and (meta[6] or '0') == '0' and now >= tonumber(meta[1] or 0) and tonumber(meta[2] or 0) <= tonumber(ARGV[15])
  local till = calm and tonumber(sub(mine, 17, 29))
  calm = calm and till <= now + 2 * tonumber(ARGV[10])
    and (ARGV[13] == '' or (now - tonumber(ARGV[13]) <= 5000 and now - tonumber(ARGV[13]) >= -5000))
    and call('EXISTS', P .. 'dead', P .. 'looks') == 0
    and (now - tonumber(meta[3] or 0) < KEEP or call('EXISTS', P .. 'recents', P .. 'leases') == 0)
  -- Another pod may have come in while this one rested.
  if calm and till <= now then calm = call('HLEN', lock) == 1 end
  if calm then
    local soon = now + tonumber(ARGV[27])
    local this = floor(soon / 60000)
    local next_due, names = (this + 1) * 60000, peek('ZRANGE', P .. 'agenda', 0, 8, 'WITHSCORES')
    calm = not names.err
    if calm and not names[1] then next_due = -1 end
    if calm and names[2] and tonumber(names[2]) > this then next_due = tonumber(names[2]) * 60000 end
    for i = 1, calm and #names or 0, 2 do
      if tonumber(names[i + 1]) > this then break end
      local kind = byte(names[i])
      -- Digits: due sets. Timers and what must go after its time are not for here, nor more sets than these.
      local some
      for _, set in ipairs(kind < 58 and i < 17 and due_sets(names[i]) or {}) do
        local head = peek('ZRANGE', P .. 'due:' .. set, 0, 0, 'WITHSCORES')
        local due = head[2] and tonumber(head[2])
        calm = calm and not head.err and not (due and due <= soon)
        some = some or due
        if due and due < next_due then next_due = due end
      end
      calm = calm and some
      if not calm then break end
    end
    if calm then
      local wake = next_due >= 0 and next_due < now + REST and next_due or now + REST
      call('HSET', KEYS[1], 'clock', format('%.0f', now))
      call('HSET', lock, pod, ARGV[3] .. format('%013.0f%013.0f', now + tonumber(ARGV[10]), wake))
      return { 'OK', stamp, next_due, 0, 0, 0, 0, tonumber(meta[1] or 0), 1 }
    end
  end
end
