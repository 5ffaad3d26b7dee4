-- access/note: an operator's action is written down.
-- moves   none
-- keys    1 {namespace:access}:meta   2 {namespace:access}:never   (the rest derives from the tag)
-- args    1 now_ms or ""  2 who  3 action  4 target  5 detail  6 most
-- gives   OK {stamp, id of the note}
-- bound   about as many notes as the caller allows; older ones go
-- events  none
-- memory  allow-oom
return { 'OK', stamp, call('XADD', P .. 'notes', 'MAXLEN', '~', ARGV[6], '*',
  'at', now13, 'who', ARGV[2], 'action', ARGV[3], 'target', ARGV[4], 'detail', ARGV[5]) }
