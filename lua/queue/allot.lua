-- queue/allot: what one pod may hand out under the limits of a queue or downstream until it asks again.
-- moves   none
-- keys    1 {namespace:l:<scope>}:meta   2 {namespace:l:<scope>}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 pod  3 ms that an allotment lasts  4 number of windows, for each: name, count, per_ms,
--         burst, kept, wanted, n, n × (ms, spent); then most running or "", n, n × (bucket, kept, wanted); then percent
--         of failures or "", least outcomes, open_ms, window_ms, probes, succeeded, failed, probes wanted
-- gives   OK {stamp, for each window: granted, ms until there may be more; for each bucket: share; 1 if shares are scarce;
--         state of the breaker c | o | h, since, until, reason, probes granted}
-- bound   windows <= 7 of 100 stretches; shares <= buckets × holders
-- events  none
-- memory  allow-oom
local pod, lasts, at = ARGV[2], tonumber(ARGV[3]), 3
local function arg()
  at = at + 1
  return ARGV[at]
end
local function number() return tonumber(arg()) end
local function flat(key)
  local all, list = {}, call('HGETALL', key)
  for i = 1, #list, 2 do all[list[i]] = list[i + 1] end
  return all
end
local out, till13 = { 'OK', stamp }, format('%013.0f', now + lasts)

-- Windows: at most `count` in any `per` ms. What was spent is kept by stretches of a hundredth; what pods still hold
-- counts as spent now; and no more than a burst is granted at once, so that a storm is spread.
local windows, n = P .. 'allotted', number()
local all = n > 0 and flat(windows) or {}
for _ = 1, n do
  local name, count, per, burst, kept, want = arg(), number(), number(), number(), number(), number()
  local width, stretches, list = floor(per / 100), {}, {}
  local function spend(ms, k)
    local s = floor(ms / width)
    stretches[s] = (stretches[s] or 0) + k
  end
  for s, k in string.gmatch(all[name] or '', '(%d+):(%d+)') do stretches[tonumber(s)] = tonumber(k) end
  local spent, held, prefix = 0, 0, name .. '/'
  for _ = 1, number() do
    local ms, k = number(), number()
    spend(ms > now and now or ms, k)
    spent = spent + k
  end
  local had = tonumber(sub(all[prefix .. pod] or '', 14)) or 0
  for field, v in pairs(all) do
    if sub(field, 1, #prefix) == prefix and field ~= prefix .. pod then
      local till, k = tonumber(sub(v, 1, 13)), tonumber(sub(v, 14))
      if till < now then
        -- Nobody will say what a dead pod spent: all of it, as late as it could.
        spend(till, k)
        call('HDEL', windows, field)
      else
        held = held + k
      end
    end
  end
  local sum, oldest = 0, nil
  for s, k in pairs(stretches) do
    if (s + 1) * width > now - per and s * width <= now + per then
      sum = sum + k
      if not oldest or s < oldest then oldest = s end
      list[#list + 1] = format('%.0f:%.0f', s, k)
    end
  end
  local step = per / (count * 1.1)
  local tat = tonumber(all[name .. '='] or 0)
  local back = had - spent - kept
  if back > 0 then tat = tat - back * step end
  if tat < now - burst * step or tat > now + per then tat = now - burst * step end
  local free, may = count - sum - held - kept, floor((now - tat) / step + 0.000001)
  local grant = want
  if free < grant then grant = free end
  if may < grant then grant = may end
  if grant < 0 then grant = 0 end
  tat = tat + grant * step
  local wait = 0
  if grant < want then
    wait = math.ceil(tat + step - now)
    if free <= grant then
      local later = oldest and (oldest + 1) * width + per - now or lasts / 20
      if later > wait then wait = later end
    end
  end
  call('HSET', windows, name, table.concat(list, ' '), name .. '=', format('%.3f', tat))
  if kept + grant > 0 then call('HSET', windows, prefix .. pod, till13 .. format('%.0f', kept + grant))
  else call('HDEL', windows, prefix .. pod) end
  out[#out + 1] = grant
  out[#out + 1] = wait < 1 and 1 or wait
end

-- Running: each bucket has a share; all shares together are at most the limit, unless it was lowered. A share is what
-- runs there and what was granted beyond that; whoever has waited longest comes first.
local most, buckets = tonumber(arg()), number()
if most then
  local shares, mine, wants, total, hungry, parts, starving = P .. 'shares', {}, {}, 0, 0, buckets, false
  for i = 1, buckets do
    mine[i] = { bucket = arg(), kept = number(), want = number() }
    mine[mine[i].bucket] = mine[i]
    total = total + mine[i].kept
  end
  for field, v in pairs(flat(shares)) do
    local bucket, who = string.match(field, '^(%d+)/(.*)$')
    local till, since, share = tonumber(sub(v, 1, 13)), tonumber(sub(v, 14, 26)), tonumber(sub(v, 27))
    local own = mine[bucket]
    if own and who == pod then own.since = since
    elseif till < now and (own or share == 0) then call('HDEL', shares, field)
    else
      total, parts = total + share, parts + 1
      if since > 0 and till >= now then
        wants[#wants + 1] = since
        hungry = hungry + 1
        if share == 0 and now - since > 100 then starving = true end
      end
    end
  end
  local asking = {}
  for i = 1, buckets do
    local own = mine[i]
    if own.want > 0 then
      -- Who has something comes behind all that have nothing.
      if own.kept > 0 or not own.since or own.since == 0 then own.since = now end
      if own.kept == 0 and now - own.since > 100 then starving = true end
      wants[#wants + 1] = own.since
      asking[#asking + 1] = own
    else own.since = 0 end
  end
  table.sort(wants)
  table.sort(asking, function(a, b) return a.since < b.since or (a.since == b.since and tonumber(a.bucket) < tonumber(b.bucket)) end)
  local free = most - total
  local each = #wants > 0 and floor(free / #wants) or 0
  local last = free > 0 and wants[free < #wants and free or #wants] or -1
  local left, extra = free, hungry == 0
  for _, own in ipairs(asking) do
    local grant = each
    if each < 1 then grant = own.since <= last and 1 or 0 end
    if grant > own.want then grant = own.want end
    if grant > left then grant = left > 0 and left or 0 end
    own.grant = grant
    left = left - grant
  end
  -- What nobody else wants may go to whoever does.
  if extra then
    for _, own in ipairs(asking) do
      local more = own.want - own.grant
      if more > left then more = left end
      if more > 0 then
        own.grant = own.grant + more
        left = left - more
      end
    end
  end
  local fair = floor(most / (parts > 0 and parts or 1))
  -- Where there is less than one for each, they take turns.
  if fair < 1 then fair = starving and 0 or 1 end
  for i = 1, buckets do
    local own = mine[i]
    local share = own.kept + (own.grant or 0)
    local waits = own.want > (own.grant or 0)
    if own.grant and own.grant > 0 then own.since = waits and now or 0 end
    if share > 0 or own.since > 0 then call('HSET', shares, own.bucket .. '/' .. pod, till13 .. format('%013.0f', own.since) .. format('%.0f', share))
    else call('HDEL', shares, own.bucket .. '/' .. pod) end
    out[#out + 1] = ((hungry > 0 or starving) and own.kept > 0 and share > fair) and fair or share
  end
  local unserved = hungry > 0
  for _, own in ipairs(asking) do unserved = unserved or own.want > own.grant end
  out[#out + 1] = unserved and 1 or 0
end

-- The breaker.
local percent = tonumber(arg())
if percent then
  local least, open_ms, window_ms, probes, succeeded, failed, want = number(), number(), number(), number(), number(), number(), number()
  local key, width, stretches, list = P .. 'breaker', floor(window_ms / 20), {}, {}
  local v = call('HMGET', key, 'state', 'since', 'until', 'reason', 'stretches', 'given', 'good', 'bad')
  local state, since, till, reason = v[1] or 'c', tonumber(v[2] or now), tonumber(v[3] or 0), v[4] or ''
  local given, good, bad, granted = tonumber(v[6] or 0), tonumber(v[7] or 0), tonumber(v[8] or 0), 0
  if state == 'c' then
    for s, g, b in string.gmatch(v[5] or '', '(%d+):(%d+):(%d+)') do stretches[tonumber(s)] = { tonumber(g), tonumber(b) } end
    local s = floor(now / width)
    local this = stretches[s] or { 0, 0 }
    stretches[s] = { this[1] + succeeded, this[2] + failed }
    for at_, counts in pairs(stretches) do
      if (at_ + 1) * width > now - window_ms and at_ * width <= now + window_ms and counts[1] + counts[2] > 0 then
        good, bad = good + counts[1], bad + counts[2]
        list[#list + 1] = format('%.0f:%.0f:%.0f', at_, counts[1], counts[2])
      end
    end
    if good + bad >= least and bad * 100 >= percent * (good + bad) then
      reason = format('%.0f of %.0f outcomes within %.0f s failed', bad, good + bad, window_ms / 1000)
      state, since, till, list = 'o', now, now + open_ms, {}
    end
    good, bad = 0, 0
  elseif state == 'h' then
    good, bad = good + succeeded, bad + failed
    if bad * 100 >= percent * probes then
      reason = format('%.0f of %.0f probes failed', bad, good + bad)
      state, since, till = 'o', now, now + open_ms
    elseif good + bad >= probes then
      state, since, till, reason = 'c', now, 0, format('%.0f of %.0f probes succeeded', good, good + bad)
    elseif now >= till then
      -- Probes of which nobody has heard are lost.
      given, till = good + bad, now + open_ms
    end
  end
  if state == 'o' and (now >= till or till > now + open_ms) then state, since, till, given = 'h', now, now + open_ms, 0 end
  if state ~= 'h' then given, good, bad = 0, 0, 0
  else
    granted = probes - given
    if want < granted then granted = want end
    given = given + granted
  end
  call('HSET', key, 'state', state, 'since', format('%.0f', since), 'until', format('%.0f', till), 'reason', reason,
    'stretches', table.concat(list, ' '), 'given', given, 'good', good, 'bad', bad)
  for _, x in ipairs({ state, since, till, reason, granted }) do out[#out + 1] = x end
end
return out
