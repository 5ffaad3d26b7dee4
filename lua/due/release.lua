-- due/release: granted tasks that will not start here go back to the front of their lanes, uncounted.
-- moves   running -> pending | cancelled
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 who  3 cause  4… id 16 + grant 18
-- gives   OK {stamp, a letter a row: H handed back, C cancelled, Z stale}
-- bound   rows <= single_max_rows
-- events  handed back, cancelled
-- memory  allow-oom
local who, run, counts = ARGV[2], P .. 'run', P .. 'counts'
need('stream', 'events')
need_all('hash', 'counts', 'tally', 'run', 'at', 'tries', 'lock')
need('zset', 'agenda')
local ids, letters, rares, pending, cancelled, gone, seen = {}, {}, {}, 0, 0, 0, {}
for i = 1, #ARGV - 3 do ids[i] = sub(ARGV[i + 3], 1, 16) end
if #ids == 0 then return { 'OK', stamp, '' } end
local found, specs = call('HMGET', run, unpack(ids)), {}
for i, id in ipairs(ids) do
  local r = found[i]
  if r and run_grant(r) == sub(ARGV[i + 3], 17, 34) then
    need('hash', 'task:' .. shelf(id))
    local spec = call('HGET', P .. 'task:' .. shelf(id), id)
    specs[i] = spec
    if spec and run_cancelled(r) then need_end(id, spec)
    elseif spec then need_back(id, spec) end
  end
end
for i, id in ipairs(ids) do
  local r = found[i]
  letters[i] = 'Z'
  if r and not seen[id] and run_grant(r) == sub(ARGV[i + 3], 17, 34) then
    seen[id] = true
    local spec, grant = specs[i], run_grant(r)
    if not spec then
      call('HDEL', run, id)
      tally_end(id, spec, r)
      gone = gone + 1
      rares[#rares + 1] = rare(id, grant, 'F', 0, 'running without a spec: dropped')
    elseif run_cancelled(r) then
      call('HDEL', run, id)
      tally_end(id, spec, r)
      finish(id, spec, 'C', sub(grant, 1, 8))
      cancelled = cancelled + 1
      letters[i] = 'C'
      rares[#rares + 1] = rare(id, grant, 'C', 0, 'cancelled before it started')
    else
      hand_back(id, r, spec, run_losses(r))
      pending = pending + 1
      letters[i] = 'H'
      rares[#rares + 1] = rare(id, grant, 'H', 0, ARGV[3])
    end
  end
end
if #rares > 0 then
  call('HINCRBY', counts, 'running', -pending - cancelled - gone)
  if pending > 0 then call('HINCRBY', counts, 'pending', pending) end
  if cancelled > 0 then call('HINCRBY', counts, 'cancelled', cancelled) end
  if gone > 0 then call('HINCRBY', counts, 'deleted', gone) end
  emit('v', who, table.concat(rares))
end
if pending > 0 then wake(now) end
return { 'OK', stamp, table.concat(letters) }
