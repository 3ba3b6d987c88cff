"""The ledger: accounts, and what was booked on them.

Invariants:
- the entries of each payment add up to zero, and so do all entries together;
- a balance is the sum of the entries of its account: there is no second figure that could differ from it;
- the payments of one payer are made one after the other: the fencing tokens of its lock rise with them.
"""

from collections.abc import Iterable

from sqlalchemy import BigInteger, ForeignKey, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from aiolocks.contrib.sqlalchemy import fence_table

BANK = "bank"
"""The account that money comes from; it alone may be below zero."""


class Base(DeclarativeBase):
    """The tables of the service."""


class Payment(Base):
    """One payment."""

    __tablename__ = "payment"
    id: Mapped[int] = mapped_column(primary_key=True)
    reference: Mapped[str]
    payer: Mapped[str] = mapped_column(index=True)
    token: Mapped[int] = mapped_column(BigInteger)  # the fencing token under which it was made


class Entry(Base):
    """The change of one payment to one account, in cents."""

    __tablename__ = "entry"
    id: Mapped[int] = mapped_column(primary_key=True)
    payment_id: Mapped[int] = mapped_column(ForeignKey(Payment.id), index=True)
    account: Mapped[str] = mapped_column(index=True)
    cents: Mapped[int] = mapped_column(BigInteger)


fence_table(Base.metadata)  # create_all makes it too


async def balance(session: AsyncSession, account: str) -> int:
    """The cents of an account."""
    total = await session.scalar(
        select(func.coalesce(func.sum(Entry.cents), 0)).where(Entry.account == account)
    )
    return int(total or 0)


async def book(
    session: AsyncSession, reference: str, payer: str, payee: str, cents: int, *, token: int
) -> Payment:
    """Adds a payment to the transaction."""
    payment = Payment(reference=reference, payer=payer, token=token)
    session.add(payment)
    await session.flush()
    session.add(Entry(payment_id=payment.id, account=payer, cents=-cents))
    session.add(Entry(payment_id=payment.id, account=payee, cents=cents))
    await session.flush()
    return payment


async def make(engine: AsyncEngine, accounts: Iterable[str], cents: int) -> None:
    """Makes the tables, if they are not there, and gives each account `cents`, if it has had none."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncSession(engine) as session, session.begin():
        for account in accounts:
            if await session.scalar(select(Entry.id).where(Entry.account == account).limit(1)) is None:
                await book(session, f"opening {account}", BANK, account, cents, token=0)
