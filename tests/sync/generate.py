"""The classes of `aiolocks.sync`, made from the asynchronous ones: `python -m tests.sync.generate` writes them again.

Each public member becomes a method that has the loop do it. What is about threads stands in `aiolocks/sync`, in
classes whose names begin with `Base`; what they have is not made.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import aiolocks
from aiolocks.kinds.ratelimit import AllLimits
from aiolocks.lock.acquirable import Acquirable
from aiolocks.lock.misuse import NotEntered
from aiolocks.transport.steps.family import kinds

TARGET: Final = Path(aiolocks.__file__).parent / "sync/_generated.py"
try:
    import aiolocks.sync
except ImportError:  # the file as it stands asks for what no longer exists
    sys.modules["aiolocks.sync._generated"] = empty = ModuleType("aiolocks.sync._generated")
    vars(empty)["__all__"] = []
from aiolocks.sync import described, functions, leases, locks, session  # noqa: E402

WIDTH: Final = 110


# -- What stands where.


@dataclass(frozen=True)
class Made:
    """A class for threads.

    Attributes:
        of: The asynchronous class.
        bases: Its bases, as they are written.
        lease: The class of its leases.
        lead: What its docstring says first; by default what that of the asynchronous one says.
        also: Members that base classes of the asynchronous class have.
    """

    name: str
    of: Any
    bases: str
    lease: str = ""
    lead: str = ""
    also: tuple[Any, ...] = ()
    final: bool = True


LEASES: Final = [
    Made("Lease", aiolocks.Lease, "BaseLease", final=False),
    Made(
        "ReentrantLease",
        aiolocks.ReentrantLease,
        "Lease",
        lead="A lease of a thread on a reentrant lock. The thread may have several.",
    ),
    Made("WriterLease", aiolocks.WriterLease, "Lease", final=False),
    Made("UpgradableLease", aiolocks.UpgradableLease, "Lease"),
    Made("RangeLease", aiolocks.RangeLease, "Lease", final=False),
    Made("RangeWriterLease", aiolocks.RangeWriterLease, "RangeLease, WriterLease"),
    Made("RangeUpgradableLease", aiolocks.RangeUpgradableLease, "RangeLease"),
    Made("JobLease", aiolocks.JobLease, "BaseJobLease, Lease"),
    Made("Term", aiolocks.Term, "BaseTerm, Lease"),
]
LOCK_DOC: Final = """A lock for threads. A method of `Session` makes it.

It is a description: cheap and immutable. Any number of threads can share it, also in a forked process.

```python
with locks.lock("order:17") as lease:  # for the length of a block
    ...


@locks.lock("order:{order_id}")  # for the length of each call
def ship(order_id): ...


lease = locks.lock("order:17").acquire()  # until lease.release()
```

Each of these waits up to the lock's `blocking_timeout`, and raises what `acquire` raises."""
OWN: Final = [
    Made("Lock", Acquirable, "BaseLock[LeaseT]", "Lease", lead=LOCK_DOC, final=False),
    Made("Leadership", aiolocks.Leadership, "BaseLeadership[Term], Lock[Term]", "Term"),
    Made("UniqueJob", aiolocks.UniqueJob, "NotEntered", "Lease"),
    Made("RateLimit", aiolocks.RateLimit, "BaseRateLimit", also=(AllLimits.__mro__[1],)),
    Made("Turnstile", aiolocks.Turnstile, "BaseTurnstile"),
    Made("Combiner", aiolocks.Combiner, "BaseCombiner"),
    Made("SingleFlight", aiolocks.SingleFlight, "BaseSingleFlight"),
    Made("Schedule", aiolocks.Schedule, "BaseSchedule", "Lease"),
]
PLAIN_LOCKS: Final = [aiolocks.Lock, aiolocks.FairLock, aiolocks.ReentrantLock, aiolocks.Redlock]
"""Those whose objects are a `Lock`."""
MADE_OF: Final = [getattr(aiolocks, kind.title) for kind in kinds().values() if not kind.made_by]
"""All that a session makes, in the order of the registry."""
KINDS: Final = [
    *OWN,
    *(
        Made(cls.__name__, cls, "Lock[Lease]", "Lease")
        if issubclass(cls, Acquirable)
        else Made(cls.__name__, cls, "NotEntered" if issubclass(cls, NotEntered) else "Described")
        for cls in MADE_OF
        if cls not in PLAIN_LOCKS and cls not in {made.of for made in OWN}
    ),
]
LEASE_OF: Final = {"ReentrantLock": "ReentrantLease"}
LEFT_OUT: Final = {
    ("Lease", "acquired_by"),
    ("Lease", "enter"),
    ("Lease", "let_go"),
    ("Session", "aclose"),
    ("Session", "from_url"),
    ("Session", "of"),
    ("Session", "statistics"),
}

TYPES: Final = {
    "SpanLease": "Lease",
    "LockT": "Self",
}
BODIES: Final = {
    ("Lease", "release"): "self._ask(self._release)",
    ("JobLease", "release"): "self._ask(lambda: self._release(done=done))",
    ("Lease", "detach"): "return self._ask(self._detach)",
    (
        "RateLimit",
        "acquire",
    ): "return self._decided(lambda it: it.acquire(amounts(n), blocking_timeout=blocking_timeout))",
    ("RateLimit", "try_acquire"): "return self._decided(lambda it: it.try_acquire(amounts(n)))",
    ("RateLimit", "peek"): "return self._decided(lambda it: it.peek(amounts(n)))",
    ("SingleFlight", "do"): (
        "return self._do(key, fn, fingerprint, blocking_timeout, "
        "keep=keep, stale=stale, early=early, jitter=jitter)"
    ),
}


# -- Words.

WORDS: Final = [
    ((r"You can await the result \(then release the lease yourself\), enter it with `async with`, or give it to "
     r"`asyncio\.create_task` and similar functions\."),
     "`with lock.acquire(blocking_timeout=2) as lease:` releases the lease at the end. Otherwise release it yourself."),
    ((r"You can enter the result with `async with`, await it \(then release the lease yourself\), or give it to "
     r"`asyncio\.create_task` and similar functions\. The body is cancelled if the lease is lost\."),
     "`with job.run() as lease:` releases the lease at the end. Otherwise release it yourself."),
    (r" As with `acquire`, you can await the result, enter it, or give it to `create_task`\.", ""),
    (r"You can also await the result: then end it with `lease\.release\(done=…\)`\.",
     "Without `with`, end it with `lease.release(done=…)`."),
    (r"Cancelled at any point, it cancels the job, and ends its run on the server\.",
     "If an exception interrupts it, its run ends on the server when the job has ended."),
    ((r"Cancelled at any point, it cancels the runs of this process, waits until they have ended, and ends them on the "
     r"server, so that no other process waits for them\."),
     "If an exception interrupts it, the runs of this process end on the server when their jobs have ended."),
    (r"until it is cancelled\b", "until an exception is raised in this thread"),
    (r"Cancelled at any point, ", "If an exception interrupts it, "),
    (r"After a cancellation or an error, ", "If an exception interrupts it, or after an error, "),
    (r"After a cancellation or an error ", "If an exception interrupts it, or after an error, "),
    (r"after a cancellation or an error, ", "if an exception interrupts it, or after an error, "),
    (r"After a cancellation it ", "If an exception interrupts it, it "),
    (r"Cancelled before the answer arrived, ", "If an exception interrupts it, "),
    (r"Cancelled, ", "If an exception interrupts it, "),
    (r"; so also after a cancellation\b", "; so also if an exception interrupts it"),
    (r"A cancellation is delayed by at most 1 s; after that",
     "If an exception interrupts the wait, it is delayed by at most 1 s; after that"),
    ((r"If a caller is cancelled, its call ends at once\. The function goes on while other callers wait for it in this "
     r"session; otherwise it is cancelled\. A value that must be kept is published also when no caller waits any more\. Limit "
     r"the wait with `asyncio\.timeout\(\)`\."),
     ("If an exception interrupts a caller that waits, its call ends. If one interrupts the caller whose thread runs the "
     "function, the run ends without a result, and another caller takes over.")),
    ((r"returns an awaitable, such as a coroutine function\. If it raises a `CancelledError` by itself, all callers get a "
     r"`RuntimeError`"), "returns the value. The thread that asks first calls it"),
    (r"and the job was cancelled\b", "which the job learns by `tick.lease.ensure_held()`"),
    (r"it never returns: cancel it then", "it never returns"),
    (r"An `async with`", "A `with`"),
    (r"`async with`", "`with`"),
    (r"\basync with\b", "with"),
    (r"\bawait ", ""),
    (r"this task itself", "this thread itself"),
    (r"\bthe task that calls this\b", "the thread that calls this"),
    (r"in this task or process", "in this thread or process"),
    (r"\b(a|the) task that (began it|waited)\b", r"\1 thread that \2"),
    (r", and the body of the first was cancelled", ""),
    (r"\bits session's?\b", lambda found: found.group()),
    (r"in a task of its session and in its own context", "in a thread of its own"),
    (r"or each run kept its event loop for longer than `ttl`\.?", ""),
    (r"A coroutine function that takes", "A function that takes"),
    (r"\bof `Lock`\.(?=$)", "of `Session.lock`."),
    (r"`Lock\.of`", "`Lock.of`"),
    (r"accounts = Lock\(redis, ", "accounts = locks.lock("),
]  # fmt: skip
OPTIONS: Final = {
    "on_lost": "Called with the `LockLostError` when the lease is lost, in a thread of its own and in the context of the "
    "acquire. None, the default: nothing is called. A thread cannot be cancelled.",
    "owner": "The owner, as a non-empty str of at most 1 KiB. Default None: the thread that acquires.",
    "others": "The sessions of the other masters, an even number of them. With this session they are an odd number, at "
    "least 3.",
}
IN_THREAD: Final = "RuntimeError: An event loop runs in this thread."


# -- Reading the asynchronous classes.


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


@functools.cache
def imported_in(module: str) -> dict[str, str]:
    """From which module each imported name comes, absolute."""
    found: dict[str, str] = {}
    package = module.rpartition(".")[0]
    if hasattr(importlib.import_module(module), "__path__"):
        package = module
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom):
            base = package.split(".")
            if node.level:
                base = base[: len(base) - (node.level - 1)]
                origin = ".".join([*base, *([node.module] if node.module else [])])
            else:
                origin = node.module or ""
            for alias in node.names:
                found[alias.asname or alias.name] = origin
    return found


def function_of(cls: Any, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """The source of a method, which may have overloads: the last one."""
    for node in tree_of(cls.__module__).body:
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            found = [
                one
                for one in node.body
                if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and one.name == name
            ]
            return found[-1]
    raise LookupError(f"{cls.__name__}.{name}")


def members(cls: Any) -> Iterator[str]:
    for name, value in vars(cls).items():
        plain = getattr(value, "__func__", value)
        if not name.startswith("_") and (isinstance(value, property) or inspect.isfunction(plain)):
            yield name


# -- Docstrings.


def reworded(text: str) -> str:
    for pattern, word in WORDS:
        text = re.sub(pattern.replace(" ", r"\s+") if isinstance(word, str) else pattern, word, text)
    return text


def paragraphs(lines: list[str]) -> Iterator[tuple[int, int, str] | str]:
    """Each paragraph or entry with its indent and that of its further lines; code as it stands."""
    group: list[str] = []
    code = False

    def closed() -> Iterator[tuple[int, int, str]]:
        if group:
            first = len(group[0]) - len(group[0].lstrip())
            further = len(group[1]) - len(group[1].lstrip()) if len(group) > 1 else first
            yield first, further, " ".join(line.strip() for line in group)
            group.clear()

    for line in lines:
        if line.strip().startswith("```"):
            yield from closed()
            code = not code
            yield line
        elif code or not line.strip():
            yield from closed()
            yield line
        else:
            indent = len(line) - len(line.lstrip())
            begins = not group or (len(group) == 1 and indent < len(group[0]) - len(group[0].lstrip()))
            if (
                group and (indent <= len(group[0]) - len(group[0].lstrip())) and indent > 0 and not begins
            ) or (group and indent == 0 and group[0].startswith(" ")):
                yield from closed()
            group.append(line)
            if re.fullmatch(r"[A-Z]\w+:", line):
                yield from closed()
    yield from closed()


def refilled(text: str, indent: int) -> str:
    """The docstring in its words for threads, in lines that are short enough where it stands."""
    done: list[str] = []
    for part in paragraphs(text.splitlines()):
        if isinstance(part, str):
            done.append(reworded(part))
            continue
        first, further, words = part
        said = reworded(words).strip()
        if not said:
            continue
        further = first + 4 if first > 0 else first
        done += textwrap.wrap(
            said,
            WIDTH - indent - (0 if done else 3),
            initial_indent=" " * first,
            subsequent_indent=" " * further,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in done)).strip()


def without_unknown(text: str) -> str:
    return re.sub(r"\n    (unknown|positional): (?:.|\n        )*", "", text)


def with_thread_error(text: str) -> str:
    """Says that no event loop may run here."""
    if "\nRaises:\n" in text:
        head, _, tail = text.partition("\nRaises:\n")
        entries, blank, rest = tail.partition("\n\n")
        if "    RuntimeError: " in entries:
            entries = re.sub(
                r"(?m)^(    RuntimeError: (?:.*)(?:\n {8}.*)*?)\.(?=\n    \S|\Z)",
                r"\1, or an event loop runs in this thread.",
                entries,
            )
            return f"{head}\nRaises:\n{entries}{blank}{rest}"
        return f"{head}\nRaises:\n{entries}\n    {IN_THREAD}{blank}{rest}"
    if "\nRaises:" in text or "RuntimeError: " in text:
        return text
    return f"{text}\n\nRaises:\n    {IN_THREAD}"


def docstring(text: str, indent: int) -> str:
    body = refilled(without_unknown(text), indent)
    lines = body.splitlines()
    pad = " " * indent
    if len(lines) == 1 and len(lines[0]) + indent + 6 <= WIDTH:
        return f'{pad}"""{body}"""'
    return f'{pad}"""' + "\n".join(f"{pad}{line}" if line else "" for line in lines).lstrip() + f'\n{pad}"""'


# -- Making.


class Maker:
    def __init__(self) -> None:
        self.types: dict[str, str] = {}
        self.values: dict[str, str] = {}

    def use(self, node: ast.AST | None, module: str, *, at_run_time: bool = False) -> None:
        """Its names are to be imported."""
        if node is None:
            return
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and one.id not in made_names() and not hasattr(__builtins__, one.id):
                if one.id in dir(__import__("builtins")):
                    continue
                origin = imported_in(module).get(one.id, module)
                (self.values if at_run_time else self.types)[one.id] = origin

    def annotation(self, node: ast.expr | None, module: str) -> str:
        if node is None:
            return "None"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        text = ast.unparse(node)
        text = re.sub(r"\bPending\[(.*)\]", r"\1", text)
        text = re.sub(r"\bSpanLock\[(\w+)\]", r"Lock[\1]", text)
        text = re.sub(r"\bSpanLease\b", "Lease", text)
        text = re.sub(r"Callable\[\[\], Awaitable\[T\]\]", "Callable[[], T]", text)
        self.use(ast.parse(text, mode="eval").body, module)
        return text

    def parameters(self, function: ast.FunctionDef | ast.AsyncFunctionDef, module: str) -> tuple[str, str]:
        """As they are declared, without the first, and as they are passed on."""
        args = function.args
        declared: list[str] = []
        passed: list[str] = []

        def one(arg: ast.arg, default: ast.expr | None) -> str:
            kind = self.annotation(arg.annotation, module)
            self.use(default, module, at_run_time=True)
            return f"{arg.arg}: {kind}" + (f" = {ast.unparse(default)}" if default is not None else "")

        plain = [*args.posonlyargs, *args.args]
        defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
        for number, (arg, default) in enumerate(zip(plain, defaults, strict=True)):
            if number:
                declared.append(one(arg, default))
                passed.append(arg.arg)
            if args.posonlyargs and number == len(args.posonlyargs) - 1:
                declared.append("/")
        if args.vararg:
            declared.append(f"*{one(args.vararg, None)}")
            passed.append(f"*{args.vararg.arg}")
        elif args.kwonlyargs:
            declared.append("*")
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
            declared.append(one(arg, default))
            passed.append(f"{arg.arg}={arg.arg}")
        if args.kwarg:
            declared.append(f"**{one(args.kwarg, None)}")
            passed.append(f"**{args.kwarg.arg}")
        return "".join(f", {it}" for it in declared), ", ".join(passed)

    # -- members

    def member(self, made: Made, cls: Any, name: str) -> str:
        function = function_of(cls, name)
        module = cls.__module__
        is_property = isinstance(inspect.getattr_static(cls, name), property)
        returns = self.annotation(function.returns, module)
        parameters, passed = self.parameters(function, module)
        call = f"it.{name}" if is_property else f"it.{name}({passed})"
        doc = inspect.getdoc(getattr(cls, name)) or ""
        of_lease = made in LEASES
        pending = function.returns is not None and "Pending[" in ast.unparse(function.returns)
        asks = True
        if (made.name, name) in BODIES:
            body = BODIES[made.name, name]
        elif re.fullmatch(r"Lock\[\w+\]", returns):
            body, asks = f"return self._part({returns}, lambda it: {call}, {returns[5:-1]})", False
        elif is_property:
            body, asks = (
                f"return {call.replace('it.', 'self._lease.' if of_lease else 'self._here().', 1)}",
                False,
            )
        elif returns in ("Self", made.of.__name__) and not pending:
            returns, asks = "Self", False
            body = f"return self._changed(lambda it: {call})"
        elif of_lease and pending:
            body = f"return self._upgraded({returns}, lambda: {call.replace('it.', 'self._lease.', 1)})"
        elif pending or (isinstance(function, ast.AsyncFunctionDef) and returns == "LeaseT"):
            lease = returns.removesuffix(" | None")
            how = "_tried" if returns.endswith("None") else "_acquired"
            lease = "" if lease in ("LeaseT", made.lease) else f", {lease}"
            body = f"return self.{how}(lambda it: {call}{lease})"
        elif isinstance(function, ast.AsyncFunctionDef):
            ask = (
                f"self._ask(lambda: {call.replace('it.', 'self._lease.', 1)}, undo=nothing)"
                if of_lease
                else f"self._ask(lambda it: {call})"
            )
            body = ask if returns == "None" else f"return {ask}"
        else:
            asks = False
            body = f"{'' if returns == 'None' else 'return '}{call.replace('it.', 'self._lease.' if of_lease else 'self._here().', 1)}"
        if asks:
            doc = with_thread_error(without_unknown(doc))
        head = "    @property\n" if is_property else ""
        return f"{head}    def {name}(self{parameters}) -> {returns}:\n{docstring(doc, 8)}\n        {body}\n"

    def cls(self, made: Made) -> str:
        hand = {name for base in made.bases.split(", ") for name in dir(base_class(base))}
        lead = made.lead or inspect.getdoc(made.of) or ""
        if not made.lead:
            lead = lead.partition("\n")[0] + f"\n\nFor threads; see `aiolocks.{made.of.__name__}`."
        found = [
            self.member(made, cls, name)
            for cls in (made.of, *made.also)
            for name in members(cls)
            if name not in hand and (made.name, name) not in LEFT_OUT
        ]
        if "__aenter__" in vars(made.of) and "__enter__" not in hand:
            found.append(self.entered(made))
        generic = ", Generic[LeaseT]" if made.name == "Lock" else ""
        final = "@final\n" if made.final else ""
        slots = "    __slots__ = ()\n"
        return (
            f"{final}class {made.name}({made.bases}{generic}):\n{docstring(lead, 4)}\n\n{slots}\n"
            + "\n".join(found)
        )

    def entered(self, made: Made) -> str:
        """`with`, of a class whose `async with` needs nothing of its task."""
        returns = self.annotation(function_of(made.of, "__aenter__").returns, made.of.__module__)
        self.values["TracebackType"] = "types"
        said = inspect.getdoc(made.of.__aexit__)
        given = "exc_type, exc, traceback"
        return (
            f"    def __enter__(self) -> {returns}:\n"
            f"        return self._ask(lambda it: it.__aenter__())\n\n"
            "    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None,"
            " traceback: TracebackType | None) -> None:\n"
            + (
                f'        """{said}"""\n'
                if said == "Does nothing."
                else f"        self._ask(lambda it: it.__aexit__({given}))\n"
            )
        )

    # -- the session

    def factory(self, cls: Any) -> str:
        name = cls.__name__.lower()
        function = function_of(cls, "__init__")
        module = cls.__module__
        args = function.args
        dropped = {"grace"} if cls is not aiolocks.Leadership else set[str]()
        args.args = [args.args[0], *args.args[2:]]  # without the client
        kept = [
            (arg, default)
            for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
            if arg.arg not in dropped
        ]
        args.kwonlyargs, args.kw_defaults = [arg for arg, _ in kept], [default for _, default in kept]
        on_lost = any(arg.arg == "on_lost" for arg in args.kwonlyargs)
        parameters, passed = self.parameters(function, module)
        parameters = re.sub(r"on_lost: OnLost = 'cancel'", "on_lost: OnLost | None = None", parameters)
        passed = (
            passed.replace("on_lost=on_lost", 'on_lost="ignore"')
            .replace(", **unknown", "")
            .replace("**unknown", "")
        )
        made = f"lambda session: kind({cls.__name__!r})(session, {passed})"
        before = f"reject_unknown({name + '()'!r}, unknown, 'sync.Session')"
        kind = "Lock" if cls in PLAIN_LOCKS else cls.__name__
        lease = (
            LEASE_OF.get(cls.__name__, "Lease")
            if kind == "Lock"
            else next(it.lease for it in KINDS if it.name == kind)
        )
        returns = f"Lock[{lease}]" if kind == "Lock" else kind
        rest = f", {lease or None}" if lease or on_lost else ""
        if on_lost:
            rest += ", on_lost"
        if cls is aiolocks.Redlock:
            parameters = ", others: Sequence[Session]" + parameters
            before += "\n        links = self._masters(others)"
            made = f"self._redlock(links, {passed})"
            rest += ", links"
        if cls is aiolocks.MultiLock:
            before += "\n        given = _several(names)"
            made = made.replace("names", "given")
        doc = self.of_factory(cls, dropped)
        return (
            f"    def {name}(self{parameters}) -> {returns}:\n{docstring(doc, 8)}\n"
            f"        {before}\n        return {kind}(self._link, {made}{rest})\n"
        )

    def of_factory(self, cls: Any, dropped: set[str]) -> str:
        doc = inspect.getdoc(cls) or ""
        summary = doc.partition("\n")[0]
        sections = doc[doc.index("\nArgs:\n") + 1 :] if "\nArgs:\n" in doc else ""
        entries = re.findall(
            r"^    (\w+): ((?:.*)(?:\n(?: {8}.*|(?=\n {8})))*)",
            sections.partition("\nRaises:")[0],
            re.MULTILINE,
        )
        said = [
            f"    {name}: {OPTIONS.get(name, text)}"
            for name, text in entries
            if name not in dropped and name not in ("client", "clients")
        ]
        if cls is aiolocks.Redlock:
            said.insert(0, f"    others: {OPTIONS['others']}")
        raises = sections.partition("\nRaises:\n")[2]
        return (
            f"{summary}\n\nSee `aiolocks.{cls.__name__}`.\n\nArgs:\n"
            + "\n".join(said)
            + f"\n\nRaises:\n{raises}"
        )

    def session(self) -> str:
        made = Made("Session", aiolocks.Session, "BaseSession")
        doc = inspect.getdoc(session.BaseSession) or ""
        own = [
            self.member(made, aiolocks.Session, name)
            for name in members(aiolocks.Session)
            if name not in dir(session.BaseSession) and ("Session", name) not in LEFT_OUT
        ]
        return (
            f"@final\nclass Session(BaseSession):\n{docstring(doc, 4)}\n\n    __slots__ = ()\n\n"
            + "\n".join([*own, *map(self.factory, MADE_OF)])
        )

    def text(self) -> str:
        classes = [self.cls(made) for made in (*LEASES, *KINDS)]
        classes.append(self.session())
        parts = [
            (
                '"""The classes of `aiolocks.sync`, made from the asynchronous ones.\n\n'
                "Do not edit this file: `python -m tests.sync.generate` writes it again.\n"
                '"""\n'
            ),
            "# mypy: disable-error-code=no-any-return",
            "from __future__ import annotations\n",
            *self.imports(),
            "",
            'LeaseT = TypeVar("LeaseT", bound="Lease")',
            'T = TypeVar("T")\n\n',
            SEVERAL,
            *(f"{text}\n" for text in classes),
            f"__all__ = {sorted(made_names())!r}",
        ]
        return "\n".join(parts)

    def imports(self) -> Iterator[str]:
        typing = {"TYPE_CHECKING", "Any", "Generic", "Iterable", "Never", "Self", "TypeVar", "final"}
        by_module: dict[str, set[str]] = {}
        lazily: dict[str, set[str]] = {}
        own = {
            "described": {"Described", "NotEntered", "kind"},
            "functions": {
                name
                for name in vars(functions)
                if re.match(r"Base(?!Lease|Lock|Session)", name)
                and name[4:] in {it.name for it in (*LEASES, *KINDS)}
            }
            | {"amounts", "Amounts"},
            "leases": {"BaseJobLease", "BaseLease", "OnLost"},
            "loopthread": {"nothing"},
            "locks": {"BaseLock"},
            "session": {"BaseSession"},
        }
        own["functions"] |= {"RateDecision"}
        ours = {name for names in own.values() for name in names} | set(made_names())
        for names, run_time in ((self.types, False), (self.values, True)):
            for name, origin in names.items():
                if name in ours or name in ("LeaseT", "T", "LockT", "dt"):
                    continue
                if origin == "typing":
                    typing.add(name)
                elif not run_time and origin.startswith("aiolocks") and name not in self.values:
                    lazily.setdefault(origin, set()).add(name)
                else:
                    by_module.setdefault(origin, set()).add(name)
        by_module.setdefault("collections.abc", set()).update(("Iterable", "Sequence"))
        typing.discard("Iterable")
        by_module["typing"] = typing
        by_module.setdefault("aiolocks.lock.options", set()).update(("reject_unknown",))
        for module in sorted(by_module, key=lambda it: (it.startswith("aiolocks"), it)):
            yield f"from {relative(module)} import {', '.join(sorted(by_module[module]))}"
        for module in sorted(own):
            yield f"from .{module} import {', '.join(sorted(own[module]))}"
        yield "if TYPE_CHECKING:"
        for module in sorted(lazily):
            yield f"    from {relative(module)} import {', '.join(sorted(lazily[module]))}"
        yield "    import datetime as dt"


SEVERAL: Final = """def _several(names: Any) -> Any:
    return [*names] if isinstance(names, Iterable) and not isinstance(names, (str, bytes)) else names

"""


def relative(module: str) -> str:
    if module == "aiolocks":
        return ".."
    return f"..{module.removeprefix('aiolocks.')}" if module.startswith("aiolocks.") else module


@functools.cache
def made_names() -> frozenset[str]:
    return frozenset(made.name for made in (*LEASES, *KINDS)) | {"Session"}


def base_class(written: str) -> Any:
    name = written.partition("[")[0]
    for module in (described, functions, leases, locks, session):
        if hasattr(module, name) and name not in made_names():
            return getattr(module, name)
    made = next(made for made in (*LEASES, *KINDS) if made.name == name)

    class Like:
        """Has what that class has of its own: the rest is that of its bases."""

    for cls in (made.of, *made.also):
        for member in members(cls):
            if (made.name, member) not in OVERRIDDEN:
                setattr(Like, member, None)
    for base in made.bases.split(", "):
        for member in dir(base_class(base)):
            if not member.startswith("_"):
                setattr(Like, member, None)
    return Like


OVERRIDDEN: Final = {("Lease", "release"), ("Lock", "acquire"), ("Lock", "try_acquire")}
"""What a class that inherits it has of its own."""


def text() -> str:
    """The file, but for the way its lines are broken."""
    return Maker().text()


def main() -> None:
    """Writes it."""
    TARGET.write_text(text())
    for options in (["check", "-q", "--fix", "--select", "I"], ["format", "-q"]):
        subprocess.run([sys.executable, "-m", "ruff", *options, str(TARGET)], check=True)


if __name__ == "__main__":
    main()
