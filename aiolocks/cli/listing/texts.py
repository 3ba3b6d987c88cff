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

PATTERN is a pattern of names, as in a shell: *, ? and […]. Without it, all names are listed. Each line is one
holder; a lock with several holders has several lines. HOLDER is a short id of the lease, HELD is how long it
has been held, and LEFT is how long it would last if its holder died now. After a !, the line says what is
wrong with the keys of the name. A line on stderr says if a name stands in two forms, as it is and
percent-encoded, which do not exclude each other; and, without --prefix, if there are names under other
prefixes.

\b
  aiolocks ls
  aiolocks ls 'order:*'
  aiolocks ls --json | jq '.locks[] | select(.waiters > 0) | .name'

\b
Exit status:
    0  done, also if nothing is held{_LAST}"""

PREFIXES: Final = f"""
List the prefixes that are in use, and how many names each has.

Locks with different prefixes do not exclude each other. A program chooses its prefix with Session(redis,
prefix=...). The other commands read one prefix: --prefix, or the variable AIOLOCKS_PREFIX.

\b
  aiolocks prefixes
  AIOLOCKS_PREFIX=shop aiolocks ls

\b
Exit status:
    0  done, also if there is none{_LAST}"""

SHOW: Final = f"""
Show who holds the lock NAME, in full: host, process, task, fencing token, and the metadata of the program;
and the processes that wait for it.

Locks of different kinds may have the same name; all of them are shown. For a schedule, it shows the next tick
and the last run, also between two runs (`aiolocks schedule` lists more runs); for a leadership, also the last
leaders.

\b
  aiolocks show nightly-backup
  aiolocks show nightly-backup >/dev/null 2>&1 && echo "it runs"

\b
Exit status:
    0  somebody holds it, or it is kept for a time after its release (at_least)
    1  neither{_LAST}"""

SCHEDULE: Final = f"""
Show when the next tick of the schedule NAME is claimed, and its last runs, the latest first.

DUE is in the time zone of this machine. LATE is how long after DUE the run began, TOOK is how long it took,
and RUN is the number of the run for this tick (with redo=, 2 after a run that was lost). OUTCOME is done,
failed, timeout, stopped, lost, skipped or running. While a change of its times is rolled out, a schedule has
two next ticks.

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

Its holder learns of it within milliseconds if the server sends pushes to its session. Otherwise it learns of
it at its next renewal, after at most a third of its ttl. Until then it goes on, at the same time as the next
holder. So first check who the holder is, and whether it really hangs: the lock of a process that has died is
free after its ttl in any case.

\b
  aiolocks release nightly-backup
  aiolocks release nightly-backup --force

The first command says who would lose the lock, and frees nothing.

\b
Exit status:
    0  freed
    1  nobody holds it
    2  --force is missing, or the command line is wrong
   69  no usable Redis server, or the user may not do it
128+n  ended by signal n; 141 if nobody reads what it prints
"""

DEADLOCKS: Final = f"""
List deadlocks: tasks of all processes that wait for each other, each for a lock that another task holds.

The search covers tasks that have waited for about half a second while they hold a lock. Each deadlock is
found twice before it is listed, so the command may take 2 s. Each line is one task, with the lock that it
waits for and the locks that it holds. `aiolocks release NAME --force` ends a deadlock: the holder then loses
its lock, so first check who it is.

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
`away` and `back` are about the server. The command takes a sample every --interval. The first sample writes
all present holds. A shorter hold may be missed, and the seconds at an end are those of the last sample. If
there are very many names, each sample reads only some of them, as with `aiolocks top`.

\b
  aiolocks watch >>/var/log/locks.jsonl
  aiolocks watch 'order:*' --interval 0.2 | jq -c 'select(.event == "wait")'

\b
Exit status:{_LAST}"""

TOP: Final = f"""
Watch who holds what, in the form of `aiolocks ls`: first the locks with the most waiters, then the locks that
have been held for longest.

Keys: s sorts by waiters, by how long a lock has been held, by the time that is left, or by name; / takes a
part of a name, Return shows the names with it, Esc shows all again; w shows the waiters, and the holders for
which they wait; arrows, PgUp, PgDn, Home and End scroll; q or Ctrl-C leaves.

If there are very many names, each sample reads only those on the screen and those with waiters, and the
others in turn: a line says so. If the server goes away, a line says so, and the command tries again. If
stdout is no terminal, it prints the table once.

\b
  aiolocks top
  aiolocks top 'order:*' --interval 0.5

\b
Exit status:
    0  left with q or Ctrl-C, or printed once{_LAST}"""
