-- lib/run: the record of a running task.
-- record: phase 1 (c, o, s), cancel flag 1 (- or C), bits 1 (1 keyed, 2 timer, 4 not at home, 8 counted, 16 by rules of its placement key, 32 bound), deadline 13,
--         grant 18 (fence 8 hex, nonce 10), losses 2 hex, lane 4, holder
local function run_phase(r) return sub(r, 1, 1) end
local function run_cancelled(r) return sub(r, 2, 2) == 'C' end
local function run_counted(r) return (byte(r, 3) - 48) % 16 >= 8 end
local function run_placed(r) return (byte(r, 3) - 48) % 32 >= 16 end
local function run_bound(r) return (byte(r, 3) - 48) % 64 >= 32 end
local function run_deadline(r) return tonumber(sub(r, 4, 16)) end
local function run_grant(r) return sub(r, 17, 34) end
local function run_losses(r) return tonumber(sub(r, 35, 36), 16) end
local function run_lane(r) return sub(r, 37, 40) end
local function run_holder(r) return sub(r, 41) end
-- A tenth of a second has a string: it is looked for as soon as its time has come. Claims, which write most of them, give
-- whole seconds, so that theirs share one.
local function lease_name(deadline) return 'lease:' .. format('%.1f', math.ceil(deadline / 100) / 10) end
-- Notes ids in such a string, and its time where they are the first.
local function lease_add(name, ids)
  if call('APPEND', P .. name, ids) == #ids then call('ZADD', P .. 'leases', sub(name, 7), sub(name, 7)) end
end
