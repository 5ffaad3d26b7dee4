-- lib/agenda: what the agenda calls a due set. One name stands for both sets of a minute, the urgent one and the
-- other: where few tasks fall into a minute, names are a quarter of what a task takes.
local function listed(name) return sub(name, -1) == 'u' and sub(name, 1, -2) or name end
-- The sets that a name stands for, the urgent one first.
local function due_sets(name) return string.find(name, '%D') and { name } or { name .. 'u', name } end
