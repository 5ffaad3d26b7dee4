-- lib/tally: running tasks and outcomes of queues for which someone asked, by queue with labels.
-- A task whose record has bit 8 is counted: it was granted when its queue was counted, and is so until it ends.
-- hash `tally`: <group>r running, <group>s succeeded, <group>f failed; the last two only grow; <group>b tasks that have
-- not ended, of those that were submitted while their queue had a bound for them
local function tally(group, letter, n) call('HINCRBY', P .. 'tally', group .. letter, n) end
-- A running task ends or comes back; `letter` says how it went, if it ran.
local function tally_end(id, spec, r, letter)
  if spec and run_placed(r) then turns().left(id, spec) end
  if not run_counted(r) then return end
  local group = sub(r, 37, 39)
  tally(group, 'r', -1)
  if letter then tally(group, letter, 1) end
end
-- A task ends for good, or comes back from the dead.
local function tally_bound(spec, n)
  if spec_bound(spec) then tally(sub(spec, 3, 5), 'b', n) end
end
