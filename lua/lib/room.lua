-- lib/room: how many tasks an executor may still be given, and who has reserved them.
-- hash `slots`: cap (most in hand and inbox), hand (popped, not finished), bytes (in the inbox), till (alive),
-- nap ("1": a push must wake it), epoch and epochtill (until then offers under an older freeze are refused), r:<pod> = count 6 + until 13: reserved, h:<pod> = until 13: waits for room
local SLOTS = P .. 'slots'
local function room()
  local all, s = call('HGETALL', SLOTS), { reserved = 0, mine = {}, hungry = {} }
  for i = 1, #all, 2 do
    local f, v = all[i], all[i + 1]
    local kind = sub(f, 1, 2)
    if kind == 'r:' then
      local n, till = tonumber(sub(v, 1, 6)), tonumber(sub(v, 7, 19))
      if till > now and till <= now + 60000 then
        s.reserved = s.reserved + n
        s.mine[sub(f, 3)] = n
      else
        call('HDEL', SLOTS, f)
      end
    elseif kind == 'h:' then
      if tonumber(v) > now then s.hungry[#s.hungry + 1] = sub(f, 3) else call('HDEL', SLOTS, f) end
    else
      s[f] = tonumber(v)
    end
  end
  s.waiting = call('LLEN', P .. 'inbox') + call('LLEN', P .. 'urgent')
  s.free = (s.cap or 0) - (s.hand or 0) - s.waiting - s.reserved
  return s
end
