-- lib/key: what a bucket's hashes of idempotency keys say; src/model/spec.rs writes the same.
-- field: the key itself, or, where it has more than 13 bytes, 14 of its SHA-1 (`spec_options` has it as `name`)
-- value: the task's id without what its bucket says, 14 bytes; once it has ended, 6 more: ms until when the key stands
local key_values
do
  local t
  -- Made on first use: most calls meet no key.
  key_values = function()
    if t then return t end
    local char, heads = string.char, {}
    t = {}
    -- The value of an id: its first digit and two bits of the seventh in one byte, then the other digits of its own.
    t.of = function(id)
      local first, _, _, _, _, _, seventh = byte(id, 1, 7)
      local at = first * 256 + seventh
      local head = heads[at]
      if not head then
        head = char(digit(char(first)) * 4 + digit(char(seventh)) % 4)
        heads[at] = head
      end
      return head .. sub(id, 2, 5) .. sub(id, 8)
    end
    local bucket = tonumber(string.match(P, '%.(%d+)%.%w*}:$'))
    local function letter(d) return sub(DIGITS, d + 1, d + 1) end
    -- The id of a value.
    t.id = function(v)
      local head = byte(v)
      return letter(floor(head / 4)) .. sub(v, 2, 5) .. letter(floor(bucket / 16)) .. letter(bucket % 16 * 4 + head % 4) .. sub(v, 6, 14)
    end
    -- Until when a key stands whose task has ended; nothing while it has not.
    t.till = function(v)
      if #v > 14 then return u16(v, 15) * 4294967296 + u32(v, 17) end
    end
    -- The hour in which a key may go whose task ends now.
    t.hour = function(window) return format('%.0f', floor((now + window) / 3600000) + 1) end
    -- What is added to a value at the end of its task.
    t.ended = function(ms)
      local text = ''
      for _ = 1, 6 do text, ms = char(ms % 256) .. text, floor(ms / 256) end
      return text
    end
    return t
  end
end
