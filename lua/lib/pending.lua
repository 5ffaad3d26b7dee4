-- lib/pending: finds a task for cancel, reschedule and reprioritize.
-- Answers a letter: P pending (with spec, place record, whether it is not at home), R running (with its record),
-- D dead, or ? neither: finished or not known.
local function find(id)
  need('hash', 'task:' .. shelf(id))
  local spec = call('HGET', P .. 'task:' .. shelf(id), id)
  local r = call('HGET', P .. 'run', id)
  if r then return 'R', spec, r end
  if not spec then return '?' end
  if call('ZSCORE', P .. 'dead', id) then return 'D', spec end
  return 'P', spec, at_of(id, spec)
end
-- The outcome letter in what `recall` found, or ?. It is asked for tasks without a spec: one that died was deleted since.
local function ended(hit)
  local letter = hit and sub(hit, 1, 1) or '?'
  return letter == 'D' and 'Z' or letter
end
local function outcome(id) return ended(recall({ [id] = true }, 1, 90, 16777216)[id]) end
