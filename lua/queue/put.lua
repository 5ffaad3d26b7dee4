-- queue/put: what is set for a queue, a downstream or the namespace is written, and read where it has changed.
-- moves   none
-- keys    1 {namespace:queues}:meta   2 {namespace:queues}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 epoch known to the caller, or ""  3 name (q:<queue>, d:<downstream>, s:<subscription>, all), "" only reads
--         4 version that is to be replaced, 0 where there is none  5 record, "" removes it  6 most records
-- gives   OK {stamp, epoch, 1 if something was written, n × (name, version 16 + record) where the epoch is another}
--         CHANGED {stamp, version that stands}  |  FULL {stamp}
-- bound   at most as many records as the caller allows
-- events  none
-- memory  allow-oom
local records, changed, name = P .. 'records', 0, ARGV[3]
if name ~= '' then
  local stands = call('HGET', records, name)
  local version = stands and tonumber(sub(stands, 1, 16)) or 0
  if version ~= tonumber(ARGV[4]) then return { 'CHANGED', stamp, version } end
  if not stands and ARGV[5] ~= '' and call('HLEN', records) >= tonumber(ARGV[6]) then return { 'FULL', stamp } end
  if stands or ARGV[5] ~= '' then
    if ARGV[5] == '' then call('HDEL', records, name)
    else call('HSET', records, name, format('%016.0f', tonumber(call('HGET', KEYS[1], 'epoch') or 0) + 1) .. ARGV[5]) end
    call('HINCRBY', KEYS[1], 'epoch', 1)
    call('SPUBLISH', P .. 'new', name)
    changed = 1
  end
end
local epoch = call('HGET', KEYS[1], 'epoch') or '0'
local out = { 'OK', stamp, tonumber(epoch), changed }
if epoch ~= ARGV[2] then
  for _, v in ipairs(call('HGETALL', records)) do out[#out + 1] = v end
end
return out
