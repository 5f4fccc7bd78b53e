"""How a stream lies in Redis, and the scripts that change it.

All keys of a stream share a hash tag. `meta` is a hash, `log` a Redis stream whose ids are `<number>-<part>`, `request`
a list of pieces, `reader` is there while a reader in another process follows. One process owns a stream: `owner` and
`epoch` of `meta` say which, and a process that writes with others gets `lost`: the stream is another's. `at` is
the id of the newest entry. Every script may be sent twice: the second time changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from continuation.resume.log import Cursor

PREFIX = "continuation:"
# The part of the entry that comes after all others, once the stream has ended.
END_PART = 2**31 + 1


@dataclass(frozen=True, slots=True)
class Keys:
    meta: str
    log: str
    request: str
    reader: str


def keys_of(stream_id: str) -> Keys:
    stem = f"{PREFIX}{{{stream_id}}}:"
    return Keys(stem + "meta", stem + "log", stem + "request", stem + "reader")


def lease_of(owner: str) -> str:
    return f"{PREFIX}process:{owner}"


def channel_of(owner: str) -> str:
    return f"{PREFIX}control:{owner}"


def id_of(cursor: Cursor) -> str:
    return f"{cursor[0]}-{cursor[1]}"


def cursor_of(entry_id: bytes) -> Cursor:
    number, _, part = entry_id.partition(b"-")
    return int(number), int(part)


class Script:
    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


Value = str | bytes | int
Command = tuple[Value, ...]


def call(script: Script, keys: Sequence[str], *values: Value) -> Command:
    return ("EVALSHA", script.sha, len(keys), *keys, *values)


# KEYS meta log request, ARGV owner epoch ttl first leg2_from started_at. A log of a lower epoch is replaced; one of the
# same is left alone.
CREATE = Script("""
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'owner')
if meta[1] then
  local epoch, mine = tonumber(meta[1]), tonumber(ARGV[2])
  if epoch > mine or (epoch == mine and meta[2] ~= ARGV[1]) then return 'lost' end
  if epoch == mine then return 'ok' end
end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'epoch', ARGV[2], 'state', 'running', 'at', '0-0', 'first', ARGV[4],
  'leg2_from', ARGV[5], 'started_at', ARGV[6])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 'ok'
""")

# KEYS meta log request, ARGV owner epoch from at ttl first oldest state leg2_from ended_at new_owner end_id, then id,
# field and value of each entry. Empty: ttl, oldest, or state and what follows it are as they were.
# Answers: ok, stop (ok, and somebody wants it stopped), lost, missing, or where the log stands if that is not `from`.
APPEND = Script("""
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'at', 'state', 'stop')
if not meta[1] or tonumber(meta[1]) < tonumber(ARGV[2]) then return 'missing' end
if meta[1] ~= ARGV[2] or meta[2] ~= ARGV[1] then return 'lost' end
if meta[3] ~= '0-0' and redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[1], KEYS[3])
  return 'missing'
end
if meta[3] ~= ARGV[3] then return meta[3] end
if meta[4] ~= 'running' then return 'ok' end
for i = 13, #ARGV, 3 do redis.call('XADD', KEYS[2], ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
if ARGV[7] ~= '' then redis.call('XTRIM', KEYS[2], 'MINID', ARGV[7]) end
redis.call('HSET', KEYS[1], 'at', ARGV[4], 'first', ARGV[6])
if ARGV[8] ~= '' then
  redis.call('HSET', KEYS[1], 'state', ARGV[8], 'leg2_from', ARGV[9], 'ended_at', ARGV[10], 'owner', ARGV[11])
  if ARGV[8] ~= 'running' then
    redis.call('XADD', KEYS[2], ARGV[12], 'e', ARGV[8])
    redis.call('DEL', KEYS[3])
  end
end
if ARGV[5] ~= '' then for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], ARGV[5]) end end
return meta[5] and 'stop' or 'ok'
""")

# KEYS meta request, ARGV owner epoch index count piece. Answers: ok, lost, missing, or how many pieces there are.
REQUEST = Script("""
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'state')
if not meta[1] then return 'missing' end
if meta[1] ~= ARGV[2] or meta[2] ~= ARGV[1] then return 'lost' end
if meta[3] ~= 'running' then return ARGV[4] end
local length = redis.call('LLEN', KEYS[2])
if length ~= tonumber(ARGV[3]) then return tostring(length) end
redis.call('RPUSH', KEYS[2], ARGV[5])
redis.call('PEXPIRE', KEYS[2], math.max(redis.call('PTTL', KEYS[1]), 1))
if length + 1 == tonumber(ARGV[4]) then redis.call('HSET', KEYS[1], 'request', ARGV[4]) end
return 'ok'
""")

# KEYS meta log request reader, ARGV owner epoch.
DROP = Script("""
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'owner')
if meta[1] == ARGV[2] and meta[2] == ARGV[1] then redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4]) end
return 'ok'
""")

# KEYS meta, ARGV owner epoch new_owner. Answers the new epoch, or nothing if another one was faster.
CLAIM = Script("""
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'state')
if meta[3] ~= 'running' then return false end
local epoch = tonumber(ARGV[2]) + 1
if meta[2] == ARGV[3] and tonumber(meta[1]) == epoch then return epoch end
if meta[1] ~= ARGV[2] or meta[2] ~= ARGV[1] then return false end
redis.call('HSET', KEYS[1], 'owner', ARGV[3], 'epoch', epoch)
return epoch
""")

# KEYS meta, ARGV owner epoch: what was claimed is nobody's again.
RELEASE = Script("""
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'owner')
if meta[1] == ARGV[2] and meta[2] == ARGV[1] then redis.call('HSET', KEYS[1], 'owner', '') end
return 'ok'
""")

# KEYS meta. Answers the owner if the stream runs.
STOP = Script("""
local meta = redis.call('HMGET', KEYS[1], 'state', 'owner')
if meta[1] ~= 'running' then return false end
redis.call('HSET', KEYS[1], 'stop', '1')
return meta[2]
""")

# KEYS meta log, ARGV start count: both as of one moment.
READ = Script("""
return {redis.call('HMGET', KEYS[1], 'at', 'state'), redis.call('XRANGE', KEYS[2], ARGV[1], '+', 'COUNT', ARGV[2])}
""")

SCRIPTS = (CREATE, APPEND, REQUEST, DROP, CLAIM, RELEASE, STOP, READ)
