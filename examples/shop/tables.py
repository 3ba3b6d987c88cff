"""The tables of the shop.

Invariants, which the tests of aiolocks check after faults:
- an order has as many parcels as rows of `parcel` name it: no update of the count is lost;
- a payment is there once for each reference, and the sum of an account is that of its payments;
- no two bookings of a room have an hour in common;
- the invoice numbers have neither a gap nor a duplicate;
- a tick is there once;
- a change of an account is there once.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sqlalchemy import BigInteger, ForeignKey
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from aiolocks.contrib.sqlalchemy import fence_table


class Base(DeclarativeBase):
    """The tables."""


class Order(Base):
    """An order; it is made with its first parcel."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    parcels: Mapped[int] = mapped_column(default=0)


class Parcel(Base):
    """A parcel of an order."""

    __tablename__ = "parcel"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id), index=True)


class Account(Base):
    """What a customer has paid, in cents."""

    __tablename__ = "account"
    customer: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int] = mapped_column(BigInteger, default=0)


class Payment(Base):
    """A payment; `invoice` is given later, by the leader."""

    __tablename__ = "payment"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    reference: Mapped[str] = mapped_column(index=True)
    cents: Mapped[int] = mapped_column(BigInteger)
    invoice: Mapped[int | None]


class Change(Base):
    """A change of an account that was synchronised, and the fencing token of its run."""

    __tablename__ = "change"
    id: Mapped[str] = mapped_column(primary_key=True)
    account: Mapped[int] = mapped_column(index=True)
    run: Mapped[int] = mapped_column(BigInteger)


class Booking(Base):
    """A room, from one hour to another."""

    __tablename__ = "booking"
    id: Mapped[int] = mapped_column(primary_key=True)
    room: Mapped[int] = mapped_column(index=True)
    begin: Mapped[int]
    end: Mapped[int]


class BookedHour(Base):
    """An hour of a booking: the key refuses a second booking of a process that lost its lock unnoticed."""

    __tablename__ = "booked_hour"
    room: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    hour: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    booking_id: Mapped[int] = mapped_column(ForeignKey(Booking.id))


class Setting(Base):
    """A part of the configuration."""

    __tablename__ = "setting"
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[int]


class StockTake(Base):
    """A tick of the schedule that was run."""

    __tablename__ = "stock_take"
    id: Mapped[int] = mapped_column(primary_key=True)
    due_ms: Mapped[int] = mapped_column(BigInteger, index=True)


fence_table(Base.metadata)  # create_all makes it too

Sessions = async_sessionmaker[AsyncSession]


async def make(url: str) -> None:
    """Makes the tables and the configuration, if they are not there."""
    from .service import store  # noqa: PLC0415 - it declares a table, and reads the environment as it is imported

    assert store.table.name in Base.metadata.tables
    async with opened(url) as (engine, sessions):
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with sessions() as session, session.begin():
            for name in ("price", "shipping"):
                if await session.get(Setting, name) is None:
                    session.add(Setting(name=name, value=1))


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[tuple[AsyncEngine, Sessions], None]:
    """Connections to the database, which are closed in the end."""
    engine = create_async_engine(url)
    try:
        yield engine, async_sessionmaker(engine)
    finally:
        await engine.dispose()
