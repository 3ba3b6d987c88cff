"""A cluster: three masters with a replica each, slots that move, and nodes that fail.

Beside the nodes there is their bus. News that one node has learned reach the others a moment later, unless
they are dead, hang or are cut off: a node goes on as it has last heard. A master that nobody has heard of for
`NODE_TIMEOUT` is replaced by its replica, in a new epoch; it becomes the replica when it hears of that.
"""

from __future__ import annotations

from collections.abc import Callable

from .group import Group
from .replicas import Losses, Pair, server_of
from .server.cluster import Layout, Slots, View, slot_of
from .server.pubsub import end_channels
from .server.replication import Replicated
from .server.store import SortedSet, Store
from .world import World

SHARDS = (("a0", "a1"), ("b0", "b1"), ("c0", "c1"))
NODES = tuple(node for nodes in SHARDS for node in nodes)
NODE_TIMEOUT = 0.6
ELECTION = 0.5
"""Seconds from when a master counts as failed to when its replica takes over, at most."""
WRITABLE = 1.0
"""Seconds for which a node that was restarted serves nothing, so that it learns of a failover before."""
_TICK = 0.1
_TOLD = 0.03
"""Seconds that word from one node to another takes, at most."""
_MAJORITY = len(SHARDS) // 2 + 1
SET_AGAIN = {dict: b"hset", SortedSet: b"zadd", list: b"rpush", set: b"sadd"}
"""The events of keys at a node that gets their slot in one step, by the type of a value; `set` of others."""


class Cluster(Group):
    """The nodes and their bus.

    Args:
        lag: Seconds that a change takes to the replica, at most.
    """

    def __init__(self, world: World, losses: Losses, *, lag: float) -> None:
        super().__init__(world, losses, name="cluster")
        ids = {name: f"{self._random.getrandbits(160):040x}" for name in NODES}
        self._layout = Layout(SHARDS, ids)
        self._believed = View([(number + 1, nodes[0]) for number, nodes in enumerate(SHARDS)])
        for name in NODES:
            node = self.nodes[name] = world.node(name, make=Replicated)
            node.set_clock(ahead=(self.nodes[NODES[0]].clock() - node.clock()) / 1e6)
            node.server.slots = Slots(name, self._layout, self._believed.copy())
        self.pairs = [
            Pair(self._clockwork, *(self.nodes[name] for name in nodes), losses, lag=lag) for nodes in SHARDS
        ]
        self._resting: dict[str, float] = {}  # until when one that was restarted serves nothing
        self._heard = dict.fromkeys(NODES, 0.0)  # when each was heard of last, and heard of a majority
        self._electing: set[int] = set()
        self._handing: set[str] = set()  # nodes that pause for a slot which leaves in one step
        self._clockwork.every(_TICK, self._tick)

    def slots(self, name: str) -> Slots:
        found = self.nodes[name].server.slots
        assert isinstance(found, Slots)
        return found

    def pair_of(self, name: str) -> Pair:
        return self.pairs[self._layout.shard_of(name)]

    def pair_at_first(self, slot: int) -> Pair:
        """The pair that has the slot before it is moved."""
        return self.pairs[self._layout.home(slot)]

    # -- the bus

    def _spread(self, name: str) -> None:
        """The others learn what this one knows."""
        for other in NODES:
            if other != name:
                self._clockwork.after(_TOLD * self._random.random(), self._tell, name, other)

    def _tell(self, name: str, other: str) -> None:
        if self._reaches(name) and self._reaches(other) and self._merge(other, self.slots(name).view):
            self._learned(other)

    def _merge(self, name: str, news: View) -> bool:
        """A node believes what is news; it tells who has subscribed to a slot that it has lost."""
        if not self.slots(name).view.merge(news):
            return False
        server = server_of(self.nodes[name])
        end_channels(server)
        server.flush_out()
        return True

    def _learned(self, name: str) -> None:
        """A node that hears that another one has taken its place becomes its replica."""
        slots, shard = self.slots(name), self._layout.shard_of(name)
        pair = self.pairs[shard]
        if slots.view.masters[shard][1] != name and server_of(self.nodes[name]).master is None:
            self._happened(name, "is a replica from now on")
            slots.migrating.clear()
            slots.importing.clear()
            pair.demote()

    def _tick(self) -> None:
        now = self._clockwork.now
        reached = [name for name in NODES if self._reaches(name)]
        masters = [pair.master.name for pair in self.pairs]
        majority = sum(name in reached for name in masters) >= _MAJORITY
        for name in reached if majority else ():
            self._heard[name] = now
        for name in reached:
            for other in self._random.sample(reached, 1):
                self._tell(other, name)
        failed = [name for name in masters if now - self._heard[name] > NODE_TIMEOUT]
        for name in (name for name in NODES if not self.nodes[name].frozen):
            alone = now - self._heard[name] > NODE_TIMEOUT
            down = alone or now < self._resting.get(name, 0.0) or (name in reached and bool(failed))
            self.slots(name).down = down
        for shard, pair in enumerate(self.pairs):
            if pair.master.name in failed and shard not in self._electing:
                self._electing.add(shard)
                self._clockwork.after(
                    ELECTION * (0.2 + 0.8 * self._random.random()), self._elect, shard, pair
                )

    def _elect(self, shard: int, pair: Pair) -> None:
        self._electing.discard(shard)
        if (
            not self._reaches(pair.master.name)
            and self._reaches(pair.replica.name)
            and pair.following
            and sum(self._reaches(other.master.name) for other in self.pairs) >= _MAJORITY
        ):
            self._take_over(shard, pair)

    def _take_over(self, shard: int, pair: Pair) -> None:
        """The replica claims the slots, in a new epoch."""
        name = pair.replica.name
        self._happened(name, f"takes the place of {pair.master.name}")
        pair.promote()
        self._claim(name, lambda epoch, view: view.masters.__setitem__(shard, (epoch, name)))

    def _claim(self, name: str, claim: Callable[[int, View], object]) -> None:
        claim(self._believed.epoch + 1, self._believed)
        self._merge(name, self._believed)
        self._heard[name] = self._clockwork.now
        self._spread(name)

    # -- what befalls it

    def start(self, name: str, *, keep: bool) -> None:
        super().start(name, keep=keep)
        self._resting[name] = self._clockwork.now + WRITABLE
        self.slots(name).down = True

    def fail_over(self, name: str) -> None:
        """Somebody has the replica take over, and nothing is lost: the master pauses meanwhile."""
        pair = self.pair_of(name)
        old = pair.master
        if not (pair.following and self._reaches(old.name) and self._reaches(pair.replica.name)):
            return
        old.freeze()

        def taken() -> None:
            if pair.master is old and not old.down and pair.following and self._reaches(pair.replica.name):
                pair.catch_up()
                self._take_over(self._layout.shard_of(name), pair)
                self._merge(old.name, self._believed)
                self._learned(old.name)
            old.thaw()

        self._clockwork.after(_TOLD * self._random.random(), taken)

    def take_over(self, name: str) -> None:
        """Somebody has the replica take over, which lacks what has not reached it."""
        pair = self.pair_of(name)
        if pair.following and self._reaches(pair.replica.name):
            self._take_over(self._layout.shard_of(name), pair)

    # -- slots that move

    def move(self, slot: int, seconds: float) -> None:
        """Key by key, as the tools do, to the next shard; it has moved when the time is over."""
        source = self._believed_shard(slot)
        to = (source + 1) % len(SHARDS)
        here, there = self.pairs[source].master.name, self.pairs[to].master.name
        if slot in self.slots(here).migrating or slot in self.slots(here).importing or here in self._handing:
            return
        self._happened(here, f"slot {slot} begins to move to {there}")
        self.slots(there).importing.add(slot)
        self.slots(here).migrating[slot] = to
        end = self._clockwork.now + seconds
        keys = sum(slot_of(key) == slot for _, key in self._keys(here))
        pause = seconds / (keys + 2)

        def step() -> None:
            left = [place for place in self._keys(here) if slot_of(place[1]) == slot]
            some = left if self._clockwork.now >= end else left[:1]
            self._carry(some, here, there)
            if len(left) > len(some) or (not left and self._clockwork.now < end - pause):
                self._clockwork.after(pause, step)
            else:
                self._moved(slot, to, here, there)

        self._clockwork.after(pause, step)

    def _moved(self, slot: int, to: int, here: str, there: str) -> None:
        self._happened(here, f"slot {slot} has moved to {there}")
        self.slots(there).importing.discard(slot)
        self._claim(there, lambda epoch, view: view.moved.__setitem__(slot, (epoch, to)))

        def told() -> None:
            self._merge(here, self.slots(there).view)
            del self.slots(here).migrating[slot]

        self._clockwork.after(_TOLD * self._random.random(), told)

    def move_at_once(self, slot: int, seconds: float, *, cancelled: bool) -> None:
        """With all of its keys, in one step behind a pause of all writes; or cancelled behind that."""
        source = self._believed_shard(slot)
        to = (source + 1) % len(SHARDS)
        here, there = self.pairs[source].master.name, self.pairs[to].master.name
        if slot in self.slots(here).migrating or slot in self.slots(here).importing or here in self._handing:
            return
        self._handing.add(here)
        self._happened(here, f"all writes pause, for slot {slot} goes to {there}")
        server = server_of(self.nodes[here])
        server.pause()

        def hand_over() -> None:
            self._handing.discard(here)
            if cancelled:
                self._happened(here, f"slot {slot} stays")
            elif self._believed_shard(slot) == source:
                places = [place for place in self._keys(here) if slot_of(place[1]) == slot]
                self._carry(places, here, there, at_once=True)
                self._happened(here, f"slot {slot} has moved to {there}")
                self._claim(there, lambda epoch, view: view.moved.__setitem__(slot, (epoch, to)))
                self._merge(here, self.slots(there).view)
            server.go_on()

        self._clockwork.after(seconds, hand_over)

    def _believed_shard(self, slot: int) -> int:
        return Slots("", self._layout, self._believed).shard(slot)

    def _keys(self, name: str) -> list[tuple[Store, bytes]]:
        return [(store, key) for store in self.nodes[name].server.stores.values() for key in store.present()]

    def _carry(
        self, places: list[tuple[Store, bytes]], here: str, there: str, *, at_once: bool = False
    ) -> None:
        source, to = server_of(self.nodes[here]), server_of(self.nodes[there])
        for store, key in places:
            value, end = store.values[key], store.ends.get(key)
            self._happened(here, f"{key.decode()} moves to {there}")
            to.apply([(store.number, key, value, end)])
            if at_once:
                # No event of the node that gives it; those of the one that gets it come before it serves.
                source.give_away(store, key)
                to.store(store.number).touched(key, SET_AGAIN.get(type(value), b"set"))
                if end is not None:
                    to.notify(to.store(store.number), key, b"expire")
            else:
                to.store(store.number).touched(key, b"restore")
                store.delete(key)
        for server in (source, to):
            server.flush_out()
