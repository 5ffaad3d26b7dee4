-- decider/note: the leader notes what it decided and why, before it acts.
-- moves   none
-- keys    1 {namespace:decider}:meta   2 {namespace:decider}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 pod  3 state from now on  4 the decision with its inputs  5 "1" if it changes something
--         6 decisions kept  7 changes kept
-- gives   OK {stamp, 1 if it was still the leader}
-- bound   two lists, cut to what is kept
-- events  none
-- memory  allow-oom
need('hash', 'lead')
need_all('list', 'windows', 'changes')
if call('HGET', P .. 'lead', 'pod') ~= ARGV[2] then return { 'OK', stamp, 0 } end
call('HSET', P .. 'lead', 'state', ARGV[3])
call('LPUSH', P .. 'windows', ARGV[4])
call('LTRIM', P .. 'windows', 0, tonumber(ARGV[6]) - 1)
if ARGV[5] == '1' then
  call('LPUSH', P .. 'changes', ARGV[4])
  call('LTRIM', P .. 'changes', 0, tonumber(ARGV[7]) - 1)
end
return { 'OK', stamp, 1 }
