-- lib/roomy: keeps a hash out of the compact form of small ones, which the server searches from its start for each field
-- (by default up to 512 fields of 64 bytes): with some hundred fields that costs more than all else a script does.
-- Called before `more` fields are written, of which `field` is one: a value too long for that form makes the server leave
-- it, once and for as long as the hash is not empty.
local function roomy(key, field, more)
  local had = call('HLEN', key)
  if had < 16 and had + more >= 16 then call('HSET', key, field, string.rep(' ', 65)) end
end
