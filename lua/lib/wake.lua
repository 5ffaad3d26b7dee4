-- lib/wake: wakes those who listen for a bucket, unless a pod that holds it comes in time by itself: it is written when
-- it plans to. A pod may sleep for longer than its permit lasts, so that nobody holds the bucket says nothing.
local function wake(due)
  for _, v in ipairs(call('HVALS', P .. 'lock')) do
    if tonumber(sub(v, 17, 29)) > now and tonumber(sub(v, 30, 42)) <= due then return end
  end
  call('SPUBLISH', P .. 'wake', format('%.0f', due))
end
