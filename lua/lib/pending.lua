-- lib/pending: finds a task for cancel, reschedule and reprioritize.
-- Answers a letter: P pending (with spec, place record, whether it is not at home), R running (with its record),
-- D dead, an outcome letter of a finished task still remembered, or ? not known.
local function find(id)
  local spec = call('HGET', P .. 'task:' .. home(id), id)
  local r = call('HGET', P .. 'run', id)
  if r then return 'R', spec, r end
  if not spec then
    local ten = floor(now / 10000)
    for t = ten, ten - 90, -1 do
      local old = call('GET', P .. 'recent:' .. format('%.0f', t))
      local hit = old and string.find(old, id, 1, true)
      if hit then return sub(old, hit + 16, hit + 16) end
    end
    return '?'
  end
  if call('ZSCORE', P .. 'dead', id) then return 'D', spec end
  return 'P', spec, at_of(id, spec)
end
-- Wakes a sleeping holder when a task became due before its planned wake-up.
local function wake(due)
  for _, v in ipairs(call('HVALS', P .. 'lock')) do
    if tonumber(sub(v, 17, 29)) > now and tonumber(sub(v, 30, 42)) > due then
      call('SPUBLISH', P .. 'wake', format('%.0f', due))
      break
    end
  end
end
