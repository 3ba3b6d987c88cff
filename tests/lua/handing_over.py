"""An acquire that also releases, in one step, as it travels."""

from __future__ import annotations

from typing import Any

from tests.lua.scripts import Scripts, shipped

OLD, NEW, OTHER = "a1" * 32, "b2" * 32, "c3" * 32
NOT_HELD = [-1]


class HandingOver(Scripts):
    """Acquires of one kind, each of them also as a hand-over."""

    step: str
    handing: str

    async def hand_over(self, old: str, new: str, *args: Any, **kwargs: Any) -> Any:
        _, text, *rest = self.acquiring(new, *args, **kwargs)  # type: ignore[attr-defined]
        step = shipped(self.step)
        handing = self.mutant.get(self.handing) or shipped(self.handing)
        assert text.endswith(step)
        return await self.run(("EVAL", text.removesuffix(step) + handing + step, *rest, old))

    @property
    def fences(self) -> list[bytes]:
        return [self.key("fence")]


async def next_one_has_it(handing: Any) -> None:
    """With a larger fencing token."""
    first = await handing.acquire(OLD)

    granted, fencing, *_ = await handing.hand_over(OLD, NEW)

    assert granted == 1
    assert int(fencing) > int(first[1])
    assert [await handing.owned(token) for token in (OLD, NEW)] == [0, 1]


async def hands_nothing_over_without_holding(handing: Any) -> None:
    assert await handing.hand_over(OLD, NEW) == NOT_HELD
    assert await handing.owned(NEW) == 0

    await handing.acquire(OTHER)
    assert await handing.hand_over(OLD, NEW) == NOT_HELD
    assert [await handing.owned(token) for token in (NEW, OTHER)] == [0, 1]
