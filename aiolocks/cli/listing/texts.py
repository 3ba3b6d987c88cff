"""The texts of `--help`."""

from __future__ import annotations

from typing import Final

_LAST: Final = """
    2  the command line is wrong
   69  no usable Redis server, or the user may not look
128+n  ended by signal n; 141 if nobody reads what it prints
"""

LS: Final = f"""
List what is held, by whom, for how long, and how many wait for it.

PATTERN is of names, as in a shell: *, ? and […]. Without one, everything is listed. Each line is one
holder; a lock with several holders has several lines. HOLDER is a short name of one possession, HELD says for
how long it has lasted, LEFT for how long it would if its holder died now. A ! says what is wrong with what
stands there. Without --prefix, a line on stderr says if there are names under other prefixes.

\b
  aiolocks ls
  aiolocks ls 'order:*'
  aiolocks ls --json | jq '.locks[] | select(.waiters > 0) | .name'

\b
Exit status:
    0  done, also if nothing is held{_LAST}"""

PREFIXES: Final = f"""
List the prefixes under which somebody may hold or wait, and of how many names.

Locks of different prefixes do not know of each other: a program chooses one with Session(redis, prefix=...).
The other commands look at one of them: --prefix, or the variable AIOLOCKS_PREFIX.

\b
  aiolocks prefixes
  AIOLOCKS_PREFIX=shop aiolocks ls

\b
Exit status:
    0  done, also if there is none{_LAST}"""

SHOW: Final = f"""
Show who holds the lock NAME, in full: host, process, task, fencing token, and the metadata of the program;
and the processes that wait for it.

Locks of different kinds may have the same name; all of them are shown. Of a schedule it shows the next tick
and the last run, also between two runs (`aiolocks schedule` lists more of them); of a leadership also the
last leaders.

\b
  aiolocks show nightly-backup
  aiolocks show nightly-backup >/dev/null 2>&1 && echo "it runs"

\b
Exit status:
    0  somebody holds it, or it is kept for a time after its release (at_least)
    1  neither{_LAST}"""

SCHEDULE: Final = f"""
Show when the next tick of the schedule NAME is claimed, and its last runs, the latest first.

DUE is in the time zone of this machine. LATE says how long after that the run began, TOOK how long it lasted
or lasts, RUN which run of the tick it was (2 after one that was lost, with redo=). OUTCOME is done, failed,
timeout, stopped, lost, skipped or running. While a change of its times is rolled out, a schedule has two next
ticks.

\b
  aiolocks schedule nightly
  aiolocks schedule nightly --limit 100 --json | jq '.history[] | select(.outcome == "failed")'
  aiolocks schedule nightly >/dev/null 2>&1 || echo "nobody runs it"

\b
Exit status:
    0  a process keeps it: one has asked for the last tick that was due
    1  none does, or none ever has{_LAST}"""

RELEASE: Final = """
Free the lock NAME from its holder, and wake the next waiter.

Its holder is told at once, within some milliseconds, where its session hears of changes; otherwise it learns
of it when it next renews its lease, after a third of its ttl at the latest. Until then it goes on, beside the
next holder. So look first who it is, and whether it is really dead or hung: the lock of a process that has
died is free after its ttl anyway.

\b
  aiolocks release nightly-backup
  aiolocks release nightly-backup --force

The first says who would lose it, and frees nothing.

\b
Exit status:
    0  freed
    1  nobody holds it
    2  --force is missing, or the command line is wrong
   69  no usable Redis server, or the user may not do it
128+n  ended by signal n; 141 if nobody reads what it prints
"""

DEADLOCKS: Final = f"""
List deadlocks: tasks of any processes that wait for each other, each for a lock that another one holds.

They are looked for among tasks that have waited for about half a second while they hold a lock. Each is found
twice before it is listed, so this may take 2 s. Each line is one task, with what it waits for and what it
holds. `aiolocks release NAME --force` ends one: its holder goes on without the lock, so look first who it is.

\b
  aiolocks deadlocks
  aiolocks deadlocks --json | jq '.deadlocks[].tasks[] | {{host, pid, task}}'

\b
Exit status:
    0  there is none
    1  there is one, or more{_LAST}"""

WATCH: Final = f"""
Write a line of JSON for each hold and each wait that begins or ends, for a log, until a signal ends it.

Its `event` is `hold`, `hold ended`, `wait` (with `held_by`) or `wait ended`. The first line has `begun`;
`away` and `back` tell of the server. The first look tells of all that is held. The lines come from looks, one
each --interval: a hold that is shorter may not be seen, and the seconds of an end are those of the last look.
Of very many names, some are read at each look, as by `aiolocks top`.

\b
  aiolocks watch >>/var/log/locks.jsonl
  aiolocks watch 'order:*' --interval 0.2 | jq -c 'select(.event == "wait")'

\b
Exit status:{_LAST}"""

TOP: Final = f"""
Watch who holds what, as `aiolocks ls` lists it: what most wait for comes first, then what has been held for
longest.

Keys: s sorts by waiters, by how long a lock has been held, by the time that is left, or by name; / takes a
part of a name, Return shows the names with it, Esc shows all again; w shows the waiters, and the holders for
which they wait; arrows, PgUp, PgDn, Home and End scroll; q or Ctrl-C leaves.

Of very many names, only those on the screen and those with waiters are read at each look, and the others in
turn: a line says so. If the server goes away, it says so and tries again. Where stdout is no terminal, it
prints the table once.

\b
  aiolocks top
  aiolocks top 'order:*' --interval 0.5

\b
Exit status:
    0  left with q or Ctrl-C, or printed once{_LAST}"""
