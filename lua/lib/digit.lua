-- lib/digit: the 64 digits of ids and lane codes; src/model/digits.rs has the same.
local DIGITS = '-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz'
local function digit(c) return string.find(DIGITS, c, 1, true) - 1 end
local minutes = {}
-- The home minute of an id, as text fit for a key.
local function home(id)
  local p = sub(id, 1, 5)
  local m = minutes[p]
  if not m then
    local v = 0
    for i = 1, 5 do v = v * 64 + digit(sub(p, i, i)) end
    m = format('%.0f', v)
    minutes[p] = m
  end
  return m
end
local shelves = {}
-- The hour of an id's home minute, as text: the hash in which its spec lies for life.
local function shelf(id)
  local p = sub(id, 1, 5)
  local h = shelves[p]
  if not h then
    h = format('%.0f', floor(home(id) / 60))
    shelves[p] = h
  end
  return h
end
local levels = {}
-- The priority, 0 to 5, of a lane code.
local function level(lane)
  local c = sub(lane, 4, 4)
  local p = levels[c]
  if not p then
    p = floor(digit(c) / 8)
    levels[c] = p
  end
  return p
end
