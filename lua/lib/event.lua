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
-- Adds the moves of an entry that is cut off to `moves`, by their letters; answers what that cost, a row of kind e being 1.
local function count_moves(kind, r, moves)
  local FIXED = { s = 23, g = 16, c = 34, b = 34 }
  local function add(letter, n) moves[letter] = (moves[letter] or 0) + n end
  if FIXED[kind] then
    add(kind == 'g' and 'c' or kind, floor(#r / FIXED[kind]))
    return 1
  elseif kind == 'e' then
    for at = 35, #r, 45 do add(sub(r, at, at), 1) end
    return #r / 45
  end
  local at, n = 1, 0
  while at <= #r do
    local len = tonumber(kind == 'o' and sub(r, at + 34, at + 35) or sub(r, at + 48, at + 51))
    if not len then break end
    add(kind == 'o' and 'o' or sub(r, at + 34, at + 34), 1)
    at, n = at + (kind == 'o' and 36 or 52) + len, n + 1
  end
  return 8 * n
end
