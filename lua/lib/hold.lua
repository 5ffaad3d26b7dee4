-- lib/hold: what start, renew and offer share: rows of id 16 + grant 18 + lease 8 (ms), from ARGV[first] on.
-- `move` makes the new record of one that is current, or answers nothing to leave it alone.
-- Answers a letter a row (K held, C held but asked to cancel, Z stale) and its deadline.
local function hold(first, move)
  local run, ids, lnow = P .. 'run', {}, lease_clock()
  need('hash', 'run')
  need('zset', 'leases')
  local n = #ARGV - first + 1
  local letters, deadlines = {}, {}
  if n == 0 then return letters, deadlines end
  for i = 1, n do ids[i] = sub(ARGV[first + i - 1], 1, 16) end
  local found, hset, leases, named = call('HMGET', run, unpack(ids)), {}, {}, {}
  for i = 1, n do
    local row, r = ARGV[first + i - 1], found[i]
    if r and run_grant(r) == sub(row, 17, 34) then
      local deadline = lnow + tonumber(sub(row, 35, 42))
      local new = move(r, format('%013.0f', deadline), row)
      letters[i] = run_cancelled(r) and 'C' or 'K'
      if new then
        hset[#hset + 1] = ids[i]
        hset[#hset + 1] = new
        deadlines[i] = run_deadline(new)
        -- A deadline that stays is named by its lease string already.
        if deadlines[i] ~= run_deadline(r) then
          local key = lease_name(deadlines[i])
          local l = leases[key]
          if not l then
            l = {}
            leases[key] = l
            named[#named + 1] = key
          end
          l[#l + 1] = ids[i]
        end
      else
        deadlines[i] = run_deadline(r)
      end
    else
      letters[i] = 'Z'
      deadlines[i] = 0
    end
  end
  if #hset > 0 then
    for _, key in ipairs(named) do need('string', key) end
    for _, key in ipairs(named) do lease_add(key, table.concat(leases[key])) end
    call('HSET', run, unpack(hset))
  end
  return letters, deadlines
end
local function held(letters, deadlines) return { 'OK', stamp, table.concat(letters), unpack(deadlines) } end
