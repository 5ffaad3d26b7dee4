-- dead/delete: dead letters are removed by hand.
-- moves   dead -> deleted
-- keys    1 {tag}:meta   2 {tag}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 who  3… ids
-- gives   OK {stamp, a letter an id: Z deleted, ? no dead letter}
-- bound   ids <= single_max_rows
-- events  deleted
-- memory  allow-oom
local counts = P .. 'counts'
need('stream', 'events') need_all('hash', 'counts', 'at') need('zset', 'dead')
sized()
local letters, gone, seen = {}, {}, {}
for i = 3, #ARGV do
  local id = ARGV[i]
  if not seen[id] and call('ZSCORE', P .. 'dead', id) then
    seen[id] = true
    need_all('hash', 'dead:' .. id, 'task:' .. shelf(id))
    letters[#letters + 1] = 'Z'
    gone[#gone + 1] = id
  else
    letters[#letters + 1] = '?'
  end
end
local records = {}
for _, id in ipairs(gone) do
  call('ZREM', P .. 'dead', id)
  call('UNLINK', P .. 'dead:' .. id)
  specs_drop(shelf(id), { id })
  call('HDEL', P .. 'at', id)
  records[#records + 1] = rare(id, NO_GRANT, 'Z', 0, 'deleted by hand')
end
if #gone > 0 then
  call('HINCRBY', counts, 'dead', -#gone)
  call('HINCRBY', counts, 'deleted', #gone)
  emit('v', ARGV[2], table.concat(records))
end
return { 'OK', stamp, table.concat(letters) }
