"""Process sets: groups of the default world, with the names and rules that Horovod gave them.

A set is a list of ranks. Adding it to the world is collective and makes a group
(:meth:`spark_ring.communicator.Communicator.group`) of its members; after that the verbs of :mod:`spark_ring`
take it as ``process_set=``. As in Horovod (``horovod.common.process_sets``):

* the order of the ranks does not matter: members are numbered by ascending rank;
* two sets of the same ranks cannot be in one world at once, and the set of all ranks is there from the start
  as :data:`global_process_set`;
* every rank of the world adds and removes the same sets in the same order, members or not;
* the root of a broadcast is a rank of the world, also within a set.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from spark_ring.errors import ConfigError, DataError

if TYPE_CHECKING:
    from spark_ring.communicator import Communicator

__all__ = ["ProcessSet", "ProcessSets", "global_process_set"]

GLOBAL_ID = 0


class ProcessSet:
    """Some ranks of the world. Of use once added, by ``init(process_sets=…)`` or ``add_process_set``.

    Attributes:
        ranks: the members, as ranks of the world, ascending.
        process_set_id: its number in the world (0 is the global set), or ``None`` while it is in none.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        """Describe a set; nothing is made yet.

        Args:
            ranks: the members, in any order.

        Raises:
            DataError: ``ranks`` is empty, names a rank twice, or holds something else than integers from 0.
        """
        try:
            members = [operator.index(rank) for rank in ranks]
        except TypeError:
            raise DataError(f"ProcessSet: ranks must be integers, not {ranks!r}") from None
        if not members or min(members) < 0 or len(set(members)) < len(members):
            raise DataError(f"ProcessSet: ranks must be one or more different ranks from 0, not {members}")
        self.ranks: list[int] = sorted(members)
        self.process_set_id: int | None = None
        self._communicator: Communicator | None = None

    def included(self) -> bool | None:
        """Return whether this process is a member; ``None`` while the set is in no world."""
        return None if self.process_set_id is None else self._communicator is not None

    def rank(self) -> int | None:
        """Return this process's rank among the members; ``None`` if it is none, or the set is in no world."""
        return None if self._communicator is None else self._communicator.rank

    def size(self) -> int | None:
        """Return the number of members; ``None`` while the set is in no world."""
        return None if self.process_set_id is None else len(self.ranks)

    def _bind(self, number: int | None, communicator: Communicator | None) -> None:
        self.process_set_id, self._communicator = number, communicator

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _GlobalProcessSet(ProcessSet):
    """All ranks of the world; there before ``init()``, when the world's size is not known."""

    def __init__(self) -> None:
        super().__init__([0])
        self.ranks = []

    def _bind(self, number: int | None, communicator: Communicator | None) -> None:
        super()._bind(number, communicator)
        self.ranks = [] if communicator is None else list(range(communicator.size))


global_process_set: ProcessSet = _GlobalProcessSet()

SetLike = ProcessSet | Iterable[int]


class ProcessSets:
    """The process sets of one world."""

    def __init__(self, world: Communicator) -> None:
        """Begin with the global set alone."""
        self._world = world
        self._sets: dict[tuple[int, ...], ProcessSet] = {}
        self._next_id = GLOBAL_ID + 1

    def bind_global(self) -> None:
        """Let :data:`global_process_set` speak of this world."""
        global_process_set._bind(GLOBAL_ID, self._world)

    def add(self, wanted: SetLike) -> ProcessSet:
        """Make the group of a set; collective. See :func:`spark_ring.world.add_process_set`."""
        added = wanted if isinstance(wanted, ProcessSet) else ProcessSet(wanted)
        if added.process_set_id is not None:
            raise ConfigError(f"{added!r} is in the world already")
        members = tuple(added.ranks)
        if members in self._sets or members == tuple(range(self._world.size)):
            present = self._sets.get(members, global_process_set)
            raise ConfigError(
                f"a process set with ranks {added.ranks} is in the world already, as {present!r}; "
                "use that one"
            )
        name = f"process set {', '.join(map(str, members))}" if len(members) <= 16 else None
        group = self._world.group(members, name)
        added._bind(self._next_id, group)
        self._next_id += 1
        self._sets[members] = added
        return added

    def remove(self, unwanted: ProcessSet) -> bool:
        """Close the group of a set. See :func:`spark_ring.world.remove_process_set`."""
        members = tuple(unwanted.ranks)
        if self._sets.get(members) is not unwanted:
            return False
        del self._sets[members]
        self._forget(unwanted)
        return True

    def communicator(self, process_set: ProcessSet | None, verb: str) -> Communicator:
        """Return the communicator of a set, the world for ``None``.

        Raises:
            ConfigError: the set is not in this world, or this rank is not a member.
        """
        if process_set is None or process_set is global_process_set:
            return self._world
        if self._sets.get(tuple(process_set.ranks)) is not process_set:
            raise ConfigError(
                f"{verb}: {process_set!r} is not in this world; pass it to init(process_sets=…) or "
                "add_process_set() on every rank first"
            )
        if process_set._communicator is None:
            raise ConfigError(
                f"{verb}: rank {self._world.rank} is not in the process set of ranks {process_set.ranks}; "
                "only members call its operations (see ProcessSet.included)"
            )
        return process_set._communicator

    def root(self, process_set: ProcessSet | None, root: int, verb: str) -> int:
        """Return the rank within a set of ``root``, which is a rank of the world."""
        if process_set is None or process_set is global_process_set:
            return root
        if root not in process_set.ranks:
            raise DataError(
                f"{verb}: root is rank {root} of the world, which is not in the process set of ranks "
                f"{process_set.ranks}"
            )
        return process_set.ranks.index(root)

    def missing(self, wanted: Sequence[Any]) -> list[ProcessSet]:
        """Return those of some sets, as :func:`spark_ring.init` takes them, that are not in the world."""
        sets = [one if isinstance(one, ProcessSet) else ProcessSet(one) for one in wanted]
        return [one for one in sets if tuple(one.ranks) not in self._sets]

    def close(self) -> None:
        """Remove all sets, the global one included."""
        for one in self._sets.values():
            self._forget(one)
        self._sets.clear()
        global_process_set._bind(None, None)

    @staticmethod
    def _forget(one: ProcessSet) -> None:
        group = one._communicator
        one._bind(None, None)
        if group is not None:
            group.close()
