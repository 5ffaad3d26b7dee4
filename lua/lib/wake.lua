-- lib/wake: wakes a sleeping holder when a task becomes due before its planned wake-up; the poll backs this up.
local function wake(due)
  for _, v in ipairs(call('HVALS', P .. 'lock')) do
    if tonumber(sub(v, 17, 29)) > now and tonumber(sub(v, 30, 42)) > due then
      call('SPUBLISH', P .. 'wake', format('%.0f', due))
      break
    end
  end
end
