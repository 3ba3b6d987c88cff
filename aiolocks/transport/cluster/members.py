"""Which nodes belong to the cluster of a session."""

from __future__ import annotations

import contextlib
from typing import Any, final

from ..driver import Address, UnreadableReplyError
from ..faults import UnusableNodeError
from ..request import UNREADABLE


class StrangerError(UnusableNodeError):
    """A node answered that is not of the session's cluster."""


class OutdatedError(UnusableNodeError):
    """A node answered that has not learned of the latest change of its cluster."""


@final
class Members:
    """The ids of the nodes in the last table of slots, masters and replicas, and the cluster's epoch then.

    Invariant: each table comes from the cluster that the first one came from. An address may belong to a node
    of another cluster by now, which takes the same credentials and serves the same slots, but keeps other
    locks. So a table is believed only if it shares a node with the one before it, and a connection is used
    only if its node has such a table. Ids are random: no two clusters have the same.

    A cluster may replace all its nodes, one after the other. So the table is asked for from time to time,
    also when nothing calls for it. A node that was given to another cluster keeps its id; it is in no table
    of its former cluster any more.

    A node that was cut off from its cluster goes on telling what it knew. So a table that was asked for is
    not believed if its epoch is smaller than that of an earlier one: another node knows better.
    """

    __slots__ = ("_epoch", "_ids")

    def __init__(self) -> None:
        self._ids: frozenset[bytes] = frozenset()
        self._epoch = 0

    def check(self, rows: Any, address: Address, epoch: int | None = None) -> frozenset[bytes]:
        """The ids in a table, as the node at this address told it.

        Args:
            rows: Its answer to `CLUSTER SLOTS`. A table without rows, or in a form without ids, is believed.
            address: For the error.
            epoch: The cluster's, as this node knows it; None where it is not known.

        Raises:
            StrangerError: It is the table of another cluster.
            OutdatedError: An earlier table was newer.
            UnreadableReplyError: It is no table.
        """
        try:
            ids = frozenset(bytes(node[2]) for _, _, *nodes in rows for node in nodes if len(node) > 2)
        except UNREADABLE as error:
            raise unreadable_table(address) from error
        if ids and self._ids and ids.isdisjoint(self._ids):
            host, port = address
            raise StrangerError(
                f"the node at {host}:{port} belongs to another cluster than the one this session began with; "
                "if the cluster was replaced, open a new Session"
            )
        if epoch is not None and epoch < self._epoch:
            host, port = address
            raise OutdatedError(
                f"the node at {host}:{port} knows an older state of its cluster (epoch {epoch}, and "
                f"{self._epoch} was known before); if the cluster was set up again, open a new Session"
            )
        return ids

    def believe(self, ids: frozenset[bytes], epoch: int | None = None) -> None:
        """These are the nodes from now on."""
        self._ids = ids or self._ids
        self._epoch = self._epoch if epoch is None else epoch

    def learn(self, rows: Any) -> None:
        """The same, from a table of a node that was checked before."""
        with contextlib.suppress(StrangerError, UnreadableReplyError):
            self.believe(self.check(rows, ("", 0)))


def unreadable_table(address: Address) -> UnreadableReplyError:
    """What a node gave as its table of slots is none."""
    host, port = address
    return UnreadableReplyError(f"the table of slots that {host}:{port} gave cannot be read")
