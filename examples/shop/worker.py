"""The worker process: it takes stock at each tick, and writes invoices while it leads.

SIGTERM ends it in order: a stock-take that runs is cancelled, the term ends, and the next process takes over.
"""

import asyncio
import contextlib
import logging
import signal

from sqlalchemy import func, select

from aiolocks import Leadership, Schedule, Session, Term, Tick
from aiolocks.contrib.sqlalchemy import fence

from .settings import DATABASE, REDIS, TICK, TTL
from .tables import Payment, Sessions, StockTake, opened


def stock_take(locks: Session, sessions: Sessions) -> Schedule:
    """A tick is run by one of all worker processes; a run that came late is refused by its fence."""
    schedule = Schedule(locks, "stock-take", every=TICK, ttl=TTL)

    @schedule
    async def take(tick: Tick) -> None:
        async with sessions() as transaction, transaction.begin():
            await fence(transaction, tick.lease)
            transaction.add(StockTake(due_ms=round(tick.due.timestamp() * 1000)))

    return schedule


async def invoices(term: Term, sessions: Sessions) -> None:
    """Numbers the payments, one after the other and without a gap: one process at a time can do that."""
    while True:
        async with sessions() as transaction, transaction.begin():
            await fence(transaction, term)
            last = await transaction.scalar(select(func.coalesce(func.max(Payment.invoice), 0))) or 0
            without = select(Payment).where(Payment.invoice.is_(None)).order_by(Payment.id).limit(100)
            for number, payment in enumerate(await transaction.scalars(without), last + 1):
                payment.invoice = number
        await asyncio.sleep(0.1)


async def main() -> None:
    """Runs until SIGTERM."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with (
        opened(DATABASE) as (_, sessions),
        Session.from_url(REDIS, prefix="shop", metadata={"service": "worker"}) as locks,
        stock_take(locks, sessions),
    ):
        lead = Leadership(locks, "invoices", ttl=TTL)
        leading = asyncio.create_task(lead.run(lambda term: invoices(term, sessions), on_error="again"))
        await stopped.wait()
        leading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leading


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
