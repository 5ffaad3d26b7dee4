-- lib/need: keys are looked at before the first write: one that holds another type is named, and nothing is changed.
local SIZE = { zset = 'ZCARD', hash = 'HLEN', set = 'SCARD', string = 'STRLEN', stream = 'XLEN', list = 'LLEN' }
local needed = {}
-- The size of a key of this type, as it was when it was first asked for.
local function need(kind, name)
  local size = needed[name]
  if size then return size end
  size = redis.pcall(SIZE[kind], P .. name)
  if type(size) == 'table' then
    local t = call('TYPE', P .. name).ok
    if t ~= kind then size = { err = 'WRONGTYPE key ' .. P .. name .. ' holds a ' .. t .. ', expected a ' .. kind } end
    error(size)
  end
  needed[name] = size
  return size
end
local function need_all(kind, ...)
  for _, name in ipairs({ ... }) do need(kind, name) end
end
