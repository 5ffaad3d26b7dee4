-- lib/event: one packed entry per call and kind; src/model/event.rs reads it.
local NO_GRANT = '                  '
-- The records are a field of their own: what arrived or exists as one string goes into it as it stands, since every
-- byte of every string that a script makes costs more than a nanosecond.
local function emit(kind, actor, records, shared)
  call('XADD', P .. 'events', '*', 'k', kind, 'd', now13 .. format('%02d', #actor) .. actor .. (shared or ''), 'r', records)
  call('HINCRBY', KEYS[1], 'evb', #records + 96)
end
-- A record of kind v: a rarer move, with its due time (0: none) and its reason.
local function rare(id, grant, letter, due, text)
  text = sub(text, 1, 1024)
  return id .. grant .. letter .. format('%013.0f', due) .. format('%04d', #text) .. text
end
