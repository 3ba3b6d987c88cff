"""Runs the blocks of pages under faults, in a process of its own: each recipe in a thread with an event loop.

What is changed in a block: times are shorter; and the work of the user, which is each ``print`` and ``...``
and the first line of each handler, is that of this module: it leaves a trace, raises when it is told to, and
lasts while the test holds it.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import json
import logging
import os
import re
import sqlite3
import sys
import threading
import time
import types
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

import aiolocks
from aiolocks import Session

TTL = 2.0
PATIENCE = 60.0
"""Seconds within which a round of a recipe ends, whatever the server does. On an idle machine a round takes
one or two; all recipes at once keep a small machine so busy that it takes ten."""
HEADERS = {
    "Authorization": "Bearer ann",
    "X-Customer": "17",
    "tenant": "ada",
    "Content-Type": "application/json",
}

BODY = '{"cents": 5, "account": 17}'

_LONG = re.compile(r"\b(ttl|grace|at_least|window|blocking_timeout|keep|stale)=(\d+(?: \* \d+)?)\b")


def shorter(text: str, changes: dict[str, str]) -> str:
    """The text of a block with shorter times."""
    for shown, short in changes.items():
        text = text.replace(shown, short)
    return _LONG.sub(
        lambda match: f"{match[1]}={min(eval(match[2]), 0.2 if match[1] == 'grace' else TTL)}", text
    )


class Work:
    """The work of the user in one recipe of this process.

    Once it is told to, it raises: in as many rounds as `raises` says, and each time two steps later than in
    the round before.
    """

    def __init__(self, directory: Path, recipe: str, *, raises: int) -> None:
        self.directory = directory
        self.recipe = recipe
        self._raises = raises
        self._raised = 0
        self._steps = 0
        self._spared = False

    def begin(self) -> None:
        """A round begins."""
        self._steps = 0
        self._spared = False

    def now(self, *_: object, **__: object) -> None:
        self._steps += 1
        due = not self._spared and self._raised < self._raises and self._steps > 2 * self._raised
        # In a thread of the library nobody would hear of it.
        due = due and not threading.current_thread().name.startswith("aiolocks-")
        if due and (self.directory / f"break-{os.getpid()}").exists():
            self._spared = True
            self._raised += 1
            (self.directory / f"raised-{self.recipe}-{os.getpid()}").write_text(str(self._raised))
            raise ZeroDivisionError(f"in the work of the user: {self._raised}")
        self.trace("work")

    async def later(self, *_: object, **__: object) -> None:
        self.now()
        await asyncio.sleep(0.01)
        while (self.directory / "hold").exists():
            await asyncio.sleep(0.05)

    def trace(self, of: str) -> None:
        (self.directory / f"{of}-{self.recipe}-{os.getpid()}").touch()


class _Works(ast.NodeTransformer):
    """Puts the work of the test in the place of the user's."""

    def __init__(self, handlers: Sequence[str] = ()) -> None:
        self._handlers = handlers
        self._inside: list[bool] = [True]

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node, asynchronous=True)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node, asynchronous=False)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        if not all(isinstance(statement, ast.Expr) for statement in node.body):
            self.generic_visit(node)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def _function(self, node: Any, *, asynchronous: bool) -> ast.AST:
        self._inside.append(asynchronous)
        self.generic_visit(node)
        if node.name in self._handlers:
            node.body.insert(0, self._work())
        self._inside.pop()
        return node  # type: ignore[no-any-return]

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        value = node.value
        if isinstance(value, ast.Constant) and value.value is ...:
            return ast.copy_location(self._work(), node)
        if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "print" and self._inside[-1]:
            value.func = ast.copy_location(ast.Name("_later", ast.Load()), value.func)
            return ast.copy_location(ast.Expr(ast.copy_location(ast.Await(value), value)), node)
        return self.generic_visit(node)

    def _work(self) -> ast.Expr:
        return ast.parse("await _later()" if self._inside[-1] else "print()").body[0]  # type: ignore[return-value]


class Recipe:
    """Some blocks of a page.

    Args:
        directory: Where traces and logs go.
        name: Of the page and of what is run.
        blocks: The texts, with the line of each.
        handlers: Functions of which the first line is the user's work.
        begin: A statement behind the blocks.
        app: The application that the blocks make, which is entered; empty without one.
        calls: What is done again and again: requests, as ``POST /orders/7``, or statements. Without any, the
            blocks are run again and again, or the application is left alone.
        module: Of which the blocks are the text, where others know it by its name.
    """

    def __init__(
        self,
        directory: str,
        name: str,
        page: str,
        blocks: Sequence[tuple[int, str]],
        *,
        handlers: Sequence[str] = (),
        begin: str = "",
        app: str = "",
        calls: Sequence[str] = (),
        module: str = "",
    ) -> None:
        self.name = name
        self.work = Work(Path(directory), name, raises=1 if app or calls else 5)
        self._codes = [self._compiled(page, line, text, handlers) for line, text in blocks]
        if begin:
            self._codes.append(self._compiled("test", 1, begin, ()))
        self._app = app
        self._calls = calls
        self._module = module
        self._namespace: dict[str, Any] = {}

    @staticmethod
    def _compiled(page: str, line: int, text: str, handlers: Sequence[str]) -> types.CodeType:
        tree = ast.fix_missing_locations(_Works(handlers).visit(ast.parse("\n" * (line - 1) + text, page)))
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code: types.CodeType = compile(tree, page, "exec", flags, dont_inherit=True)
        return code

    def run(self) -> None:
        """In a thread: for ever, again after each error, as a supervisor would."""
        number = 0
        while True:
            number += 1
            name = self._module or f"{re.sub('[^a-z]', '_', self.name)}_{number}"
            module = sys.modules[name] = types.ModuleType(name)
            self.work.begin()
            self._namespace = module.__dict__
            self._namespace |= {"print": self.work.now, "_later": self.work.later}
            try:
                with asyncio.Runner() as runner:
                    runner.run(self._run())
            except BaseException as error:
                self._tell(error, "a round")
            else:
                self.work.trace("done")
            del sys.modules[name]
            time.sleep(1)

    async def _run(self) -> None:
        try:
            if self._app or self._calls:
                for code in self._codes:
                    await self._execute(code)
                async with self._entered() as ask:
                    await self._call(ask)
            else:
                async with self._bounded("a round"):
                    for code in self._codes:
                        await self._execute(code)
        finally:
            await self._close()

    def _tell(self, error: BaseException, what: str) -> None:
        """As a framework logs the error of a handler, and Python that of a program."""
        texts = []
        errors = [error]
        for one in errors:
            if isinstance(one, BaseExceptionGroup):
                errors += one.exceptions
            else:
                kind = f"{type(one).__module__}.{type(one).__name__}"
                texts.append(" ".join([kind, str(one), *getattr(one, "__notes__", [])]))
        logging.getLogger("recipe").error("%s FAILED %s", what, "; ".join(texts), exc_info=error)

    async def _execute(self, code: types.CodeType) -> None:
        if code.co_flags & inspect.CO_COROUTINE:
            await types.FunctionType(code, self._namespace)()
        else:
            exec(code, self._namespace)

    @contextlib.asynccontextmanager
    async def _bounded(self, what: str) -> Any:
        try:
            async with asyncio.timeout(PATIENCE) as limit:
                yield
        finally:
            if limit.expired():
                logging.getLogger("recipe").error("%s HANGS", what)

    async def _call(self, ask: Callable[[str], Awaitable[None]]) -> None:
        codes = {
            call: self._compiled("call", 1, call, ())
            for call in self._calls
            if not re.match("[A-Z]+ /", call)
        }
        while True:
            for call in self._calls:
                try:
                    async with self._bounded(call):
                        await (self._execute(codes[call]) if call in codes else ask(call))
                except Exception as error:
                    self._tell(error, call)
                else:
                    self.work.trace(f"done{self._calls.index(call)}")
            await asyncio.sleep(0.3 if self._calls else 600)

    @contextlib.asynccontextmanager
    async def _entered(self) -> Any:
        """The application, with its lifespan; gives what sends a request to it."""
        if not self._app:
            yield None
            return
        from aiohttp import web

        app = self._namespace[self._app]
        number = 0

        def parts(call: str) -> tuple[str, str, dict[str, str]]:
            nonlocal number
            number += 1
            method, path = call.split(" ")
            return method, path, HEADERS | {"Idempotency-Key": f'"{os.getpid()}-{number}"'}

        def check(status: int, text: str) -> None:
            if status >= 400:
                raise RuntimeError(f"HTTP {status}: {text}")

        if isinstance(app, web.Application):
            from aiohttp.test_utils import TestClient, TestServer

            async with TestClient(TestServer(app)) as client:

                async def ask(call: str) -> None:
                    method, path, headers = parts(call)
                    async with client.request(method, path, headers=headers, data=BODY) as response:
                        check(response.status, await response.text())

                yield ask
        else:
            import httpx

            lifespan = getattr(getattr(app, "router", None), "lifespan_context", None)
            async with lifespan(app) if lifespan else contextlib.nullcontext():
                async with httpx.AsyncClient(
                    transport=httpx.ASGITransport(app), base_url="http://shop", timeout=60
                ) as http:

                    async def ask(call: str) -> None:
                        method, path, headers = parts(call)
                        response = await http.request(method, path, headers=headers, content=BODY)
                        check(response.status_code, response.text)

                    yield ask

    async def _close(self) -> None:
        """What a process leaves behind when it ends is left to nobody."""
        left = list(self._namespace.values())
        for kind in (Session, Redis):
            for opened in [value for value in left if isinstance(value, kind)]:
                with contextlib.suppress(Exception):
                    await opened.aclose()
        for database in [value for value in left if isinstance(value, sqlite3.Connection)]:
            database.close()


class ByRecipe(logging.Handler):
    """A log for each recipe of this process: records go by their thread."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        with (self._directory / f"log-{record.threadName}-{os.getpid()}").open("a") as file:
            file.write(f"{record.created:.2f} {self.format(record)}\n")


async def run(directory: str, recipes: str) -> None:
    """In a process of its own: all these recipes at once."""
    logging.basicConfig(level=logging.INFO, handlers=[ByRecipe(Path(directory))])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    os.chdir(directory)
    for kind in [getattr(aiolocks, name) for name in aiolocks.__all__]:
        defaults = getattr(getattr(kind, "__init__", None), "__kwdefaults__", None) or {}
        if "ttl" in defaults:
            defaults["ttl"] = TTL
    for described in json.loads(recipes):
        recipe = Recipe(directory, **described)
        threading.Thread(target=recipe.run, name=recipe.name, daemon=True).start()
    await asyncio.sleep(600)
