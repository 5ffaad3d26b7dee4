-- lib/outcome: the end of a task of which somebody wants to hear, put into the bucket's outbox.
-- An entry: time 13, id 16, how it ended 1, fence 8, length of the text 4, text, then the spec without its payload. What
-- nobody fetches is bounded: the oldest goes, and is counted.
local function announce(id, spec, letter, fence, text)
  local OUTBOX = 20000
  local flags, at = byte(spec, 2), spec_rest(spec)
  if flags % 2 >= 1 then at = at + spec_key_len(spec, at) end
  if flags % 4 >= 2 then at = at + 2 + u16(spec, at) end
  if flags % 8 >= 4 then at = at + 1 + byte(spec, at) end
  if flags % 16 >= 8 then at = at + 6 end
  if flags % 32 >= 16 then at = at + 6 end
  if flags % 64 >= 32 then at = at + 4 end
  if flags % 128 >= 64 then at = at + 4 end
  if flags >= 128 then at = at + 2 + u16(spec, at) end
  text = sub(text or '', 1, 1024)
  local box = P .. 'outbox'
  call('XADD', box, '*', 'o', now13 .. id .. letter .. fence .. format('%04d', #text) .. text .. sub(spec, 1, at - 1))
  if call('XLEN', box) > OUTBOX then
    local first = call('XRANGE', box, '-', '+', 'COUNT', 1)[1][1]
    call('XDEL', box, first)
    call('HINCRBY', P .. 'readers', '#cut', 1)
    call('HSET', P .. 'readers', '#cutat', first)
  end
end
