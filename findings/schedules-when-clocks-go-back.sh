#!/usr/bin/env bash
# Schedules in a time zone: the nights in which clocks are changed.
#
# Guess: with a time zone set, "each half hour" goes on each half hour, and "daily at 02:30" is once a day: the
#   schedulers differ in nothing that a user would see.
# So it is: on the night in October "each half hour" is silent for an hour with arq, Celery and what streaq
#   computes with (crontab): the second 02:00 and 02:30 are left out. "Daily at 02:30" runs twice with APScheduler, with
#   croniter (saq) and with taskiq (pycron). On the night in March taskiq leaves it out for the day, croniter and
#   cronsim (docket) run it at 03:00, the others at 03:30. Only cronsim has both: each interval, and once a day.
# Why it matters: who moves a job from one queue to another gets a second invoice, or an hour without heartbeats, once a year; a lock
#   whose name has the local time of the tick lets the second one of 02:30 not run.
# Versions: arq 0.28.0, Celery 5.7.0, APScheduler 3.11.3, croniter 7.0.0, cronsim 2.8, crontab 1.0.5, pycron 3.3.0, time-machine 3.6.0;
#   CPython 3.11.7. Celery is asked each minute, as by its beat; so is pycron, as by taskiq's scheduler.
# Output seen (Europe/Berlin; runs in October, October, March):
#                 each half hour   daily at 02:30                   daily at 02:30
#   croniter      50               02:30+0200 02:30+0100            03:00+0200
#   cronsim       50               02:30+0200                       03:00+0200
#   crontab       48               02:30+0200                       03:30+0200
#   pycron        50               02:30+0200 02:30+0100            never
#   APScheduler   50               02:30+0200 02:30+0100            03:30+0200
#   arq           48               02:30+0200                       03:30+0200
#   Celery        48               02:30+0200                       03:30+0200
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile arq==0.28.0 celery==5.7.0 apscheduler==3.11.3 \
    croniter==7.0.0 cronsim==2.8 crontab==1.0.5 pycron==3.3.0 time-machine==3.6.0 tzdata==2025.2
"$directory/venv/bin/python" - <<'PROGRAM'
import sys
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pycron
import time_machine
from apscheduler.triggers.cron import CronTrigger
from arq.cron import next_cron
from celery import Celery
from celery.schedules import crontab as celery_crontab
from croniter import croniter
from cronsim import CronSim
from crontab import CronTab

BERLIN = ZoneInfo("Europe/Berlin")
HALF_HOURS, DAILY = "*/30 * * * *", "30 2 * * *"
app = Celery("test")
app.conf.timezone = "Europe/Berlin"


def each_minute(is_due):
    """The first minute after `last` at which a scheduler that asks each minute runs the job."""

    def following(expression, last):
        for minutes in range(1, 30 * 60):
            moment = last + timedelta(minutes=minutes)
            with time_machine.travel(moment, tick=False):
                if is_due(expression, moment.astimezone(BERLIN), last):
                    return moment
        return last + timedelta(days=2)

    return following


def celery_due(expression, moment, last):
    minute, hour, *_ = expression.split()
    return celery_crontab(minute=minute, hour=hour, app=app, nowfun=lambda: moment).is_due(last).is_due


def arq_next(expression, last):
    if expression == DAILY:
        return next_cron(last.astimezone(BERLIN), hour=2, minute=30)
    return next_cron(last.astimezone(BERLIN), minute={0, 30})


SCHEDULERS = {
    "croniter": lambda expression, last: croniter(expression, last.astimezone(BERLIN)).get_next(datetime),
    "cronsim": lambda expression, last: next(CronSim(expression, last.astimezone(BERLIN))),
    "crontab": lambda expression, last: CronTab(expression).next(last.astimezone(BERLIN), return_datetime=True),
    "pycron": each_minute(lambda expression, moment, last: pycron.is_now(expression, moment)),
    "APScheduler": lambda expression, last: CronTrigger.from_crontab(expression, timezone=BERLIN).get_next_fire_time(
        last, last + timedelta(microseconds=1)
    ),
    "arq": arq_next,
    "Celery": each_minute(celery_due),
}


def runs(following, expression, month, day):
    moment = datetime(2026, month, day, tzinfo=BERLIN).astimezone(UTC) - timedelta(minutes=1)
    end = datetime(2026, month, day + 1, tzinfo=BERLIN).astimezone(UTC) - timedelta(minutes=1)
    found = []
    while (moment := following(expression, moment).astimezone(UTC)) < end:
        found.append(f"{moment.astimezone(BERLIN):%H:%M%z}")
    return found


seen = {}
print(f"{'':14}{'each half hour':17}{'daily at 02:30':33}daily at 02:30")
for name, following in SCHEDULERS.items():
    often = len(runs(following, HALF_HOURS, 10, 25))
    autumn = " ".join(runs(following, DAILY, 10, 25))
    spring = " ".join(runs(following, DAILY, 3, 29)) or "never"
    seen[name] = often, autumn, spring
    print(f"{name:14}{often:<17}{autumn:33}{spring}")
ONCE, TWICE = "02:30+0200", "02:30+0200 02:30+0100"
expected = {
    "croniter": (50, TWICE, "03:00+0200"),
    "cronsim": (50, ONCE, "03:00+0200"),
    "crontab": (48, ONCE, "03:30+0200"),
    "pycron": (50, TWICE, "never"),
    "APScheduler": (50, TWICE, "03:30+0200"),
    "arq": (48, ONCE, "03:30+0200"),
    "Celery": (48, ONCE, "03:30+0200"),
}
sys.exit(0 if seen == expected else 1)
PROGRAM
