-- dead/digest: one pod at a time tells owners of new dead letters, and notes how far it has told them.
-- moves   none
-- keys    1 {namespace:digest}:meta   2 {namespace:digest}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 pod  3 "take", "done"  4 take: lease ms, done: told until  5 take: least ms between two
--         6… done: queue, not told since
-- gives   OK {stamp, told until, n × (queue, not told since)}  |  WAIT {stamp, until}: another pod does it, or it is early
--         LOST {stamp}: the lease is over, and nothing was noted
-- bound   as many queues as have an owner
-- events  none
-- memory  allow-oom
local digest, pod = P .. 'digest', ARGV[2]
local function holder()
  local v = call('HGET', digest, 'lock')
  if v and tonumber(sub(v, 1, 13)) > now then return sub(v, 14), tonumber(sub(v, 1, 13)) end
end
local function told()
  local out = { 'OK', stamp, tonumber(call('HGET', digest, 'till')) }
  local all = call('HGETALL', digest)
  for i = 1, #all, 2 do
    if sub(all[i], 1, 2) == 'q:' then
      out[#out + 1] = sub(all[i], 3)
      out[#out + 1] = tonumber(all[i + 1])
    end
  end
  return out
end
local who, until_ms = holder()
if ARGV[3] == 'take' then
  if who and who ~= pod then return { 'WAIT', stamp, until_ms } end
  local till = tonumber(call('HGET', digest, 'till'))
  -- What died before anybody was to be told is no news. After a leap back the clock is followed.
  if not till or till > now then
    till = now
    call('HSET', digest, 'till', now13)
  end
  local early = till + tonumber(ARGV[5])
  if early > now then return { 'WAIT', stamp, early } end
  call('HSET', digest, 'lock', format('%013.0f', now + tonumber(ARGV[4])) .. pod)
  return told()
end
if who ~= pod then return { 'LOST', stamp } end
call('DEL', digest)
call('HSET', digest, 'till', ARGV[4])
for i = 6, #ARGV, 2 do call('HSET', digest, 'q:' .. ARGV[i], ARGV[i + 1]) end
return told()
