-- lib/event: one packed entry per call and kind; src/model/event.rs reads it.
local NO_GRANT = '                  '
local function emit(kind, actor, records)
  local data = now13 .. format('%02d', #actor) .. actor .. records
  call('XADD', P .. 'events', '*', 'k', kind, 'd', data)
  call('HINCRBY', KEYS[1], 'evb', #data + 64)
end
-- A record of kind v: a rarer move, with its due time (0: none) and its reason.
local function rare(id, grant, letter, due, text)
  text = sub(text, 1, 1024)
  return id .. grant .. letter .. format('%013.0f', due) .. format('%04d', #text) .. text
end
