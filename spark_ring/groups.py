"""Groups inside a communicator: some of its ranks, with connections, shared memory and progress of their own.

Making one is collective over the parent, because the parent is what carries the announcements:

1. Every rank of the parent, also one outside the group, takes part in one gather over the parent. A member
   listens already and sends its announcement (:mod:`spark_ring.peers`); what a rank could not do, it says
   instead, so that all raise and nobody waits.
2. All compare what was asked: ranks that name different members raise :class:`MismatchError` everywhere.
3. The members connect to each other as the ranks of a world do. Their secret is derived: HMAC-SHA256
   (RFC 2104) under the parent's secret over the members, the name and how often this group was made. Who
   knows the parent's secret is trusted already, and connections of two groups can never be mistaken for each
   other.

Ranks inside a group are counted from 0 in the order in which the members were given. Its errors say so: they
end with the name of the group and the ranks that its members have in the parent.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from spark_ring import objects, peers
from spark_ring.config import Settings
from spark_ring.errors import DataError, MismatchError, RendezvousError

if TYPE_CHECKING:
    from spark_ring import _core
    from spark_ring.communicator import Communicator

__all__ = ["Lineage", "make_group", "split"]

_SHOWN = 12  # ranks of a group that its name shows


@dataclass(frozen=True)
class Lineage:
    """What a communicator has to keep so that groups can be made from it.

    Attributes:
        secret: its secret; never shown.
        settings: its settings, which its groups take over.
        toward: the host its ranks have in common.
        name: the group's name; empty for a world.
        ranks: the members' ranks in the parent, in the order of the group's ranks; empty for a world.
    """

    secret: bytes = field(repr=False)
    settings: Settings
    toward: str = ""
    name: str = ""
    ranks: tuple[int, ...] = ()


def make_group(
    parent: Communicator, ranks: Sequence[int], name: str | None
) -> tuple[_core.Communicator, Lineage] | None:
    """See :meth:`spark_ring.communicator.Communicator.group`."""
    meeting = _Meeting(parent, f"spark_ring.group.{name}" if name else "spark_ring.group")
    try:
        members = _members(ranks, parent.size)
    except DataError as error:
        meeting.tell(str(error))
        raise
    asked = _Asked(members, name or "")
    return _connect(parent, asked, meeting, lambda said: _compare(said, "group"))


def split(
    parent: Communicator, color: int | None, key: int | None
) -> tuple[_core.Communicator, Lineage] | None:
    """See :meth:`spark_ring.communicator.Communicator.split`."""
    meeting = _Meeting(parent, "spark_ring.split")
    try:
        wish = [_integer(color, "color"), parent.rank if key is None else _integer(key, "key")]
    except DataError as error:
        meeting.tell(str(error))
        raise
    wishes = [said["wish"] for said in meeting.gather(wish=wish)]
    mine = wish[0]
    places = [(wishes[rank][1], rank) for rank in range(parent.size) if wishes[rank][0] == mine]
    members = () if mine is None else tuple(rank for _, rank in sorted(places))
    asked = _Asked(members, f"color {mine}")
    return _connect(parent, asked, _Meeting(parent, "spark_ring.split.connect"), lambda said: None)


@dataclass(frozen=True)
class _Asked:
    """What a rank wants: the members, as ranks of the parent, and the group's name."""

    members: tuple[int, ...]
    name: str

    def secret(self, parent_secret: bytes, made: int) -> bytes:
        what = json.dumps(["spark_ring group", self.members, self.name, made]).encode()
        return hmac.new(parent_secret, what, hashlib.sha256).digest()

    def title(self, parent: Communicator) -> str:
        shown = ", ".join(map(str, self.members[:_SHOWN]))
        if len(self.members) > _SHOWN:
            shown += f", … ({len(self.members)} in all)"
        named = f"group {self.name!r}" if self.name else "a group"
        of = parent.name and f" of group {parent.name!r}"
        return f"{named}, its rank{'s' if len(self.members) > 1 else ''} from 0 being {shown}{of}"


class _Meeting:
    """One gather over the parent, in which every rank takes part exactly once, whatever happens to it."""

    def __init__(self, parent: Communicator, name: str) -> None:
        self._parent = parent
        self._name = name
        self.held = False

    def gather(self, **said: Any) -> list[dict[str, Any]]:
        """Say something and hear everybody; raise if a rank had a problem."""
        self.held = True
        everyone: list[dict[str, Any]] = objects.allgather_object(self._parent, said, self._name)
        for rank, other in enumerate(everyone):
            if "problem" in other and rank != self._parent.rank:
                raise RendezvousError(
                    f"rank {rank} could not take part in making a group: {other['problem']}", rank=rank
                )
        return everyone

    def tell(self, problem: str) -> None:
        """Say that this rank has a problem, for which it is going to raise."""
        self.held = True
        objects.allgather_object(self._parent, {"problem": problem}, self._name)


def _connect(
    parent: Communicator,
    asked: _Asked,
    meeting: _Meeting,
    check: Callable[[list[dict[str, Any]]], None],
) -> tuple[_core.Communicator, Lineage] | None:
    """Gather announcements over the parent; then connect the members."""
    lineage = parent.lineage
    made = parent.count_group(asked.members, asked.name)
    own = {"members": list(asked.members), "name": asked.name, "made": made}
    secret = b""

    def exchange(text: str) -> list[str]:
        nonlocal secret
        said = meeting.gather(**own, text=text)
        check(said)
        # A rank that failed before it counted is behind; the members take the highest count.
        secret = asked.secret(lineage.secret, max(int(said[rank]["made"]) for rank in asked.members))
        return [said[rank]["text"] for rank in asked.members]

    if parent.rank not in asked.members:
        check(meeting.gather(**own, text=""))
        return None
    rank, size = asked.members.index(parent.rank), len(asked.members)
    if size == 1:
        exchange("")  # a group of one has nobody to announce itself to, but the others wait
    try:
        core = peers.connect(
            rank,
            size,
            exchange,
            lambda: secret,
            replace(lineage.settings, autotune_log=""),  # the log is the world's
            toward=lineage.toward,
            group=asked.title(parent),
        )
    except Exception as error:
        if not meeting.held:
            meeting.tell(f"{type(error).__name__}: {error}")
        raise
    return core, Lineage(secret, lineage.settings, lineage.toward, asked.name, asked.members)


def _members(ranks: Sequence[int], size: int) -> tuple[int, ...]:
    """Check the members of a group."""
    try:
        members = tuple(operator.index(rank) for rank in ranks)
    except TypeError as error:
        raise DataError(f"group: ranks must be a sequence of integers, not {ranks!r} ({error})") from None
    if not members:
        raise DataError("group: ranks is empty; a group has at least one member")
    for rank in members:
        if not 0 <= rank < size:
            raise DataError(f"group: {rank} is not a rank; the ranks here go from 0 to {size - 1}")
        if members.count(rank) > 1:
            raise DataError(f"group: rank {rank} is given twice")
    return members


def _integer(value: Any, what: str) -> int | None:
    if value is None:
        return None
    try:
        return operator.index(value)
    except TypeError:
        raise DataError(f"split: {what} must be an integer, not {value!r}") from None


def _compare(said: list[dict[str, Any]], verb: str) -> None:
    """Raise on every rank if some ask for another group than rank 0."""
    first = said[0]
    for rank, other in enumerate(said):
        if (other["members"], other["name"]) != (first["members"], first["name"]):
            raise MismatchError(
                f"{verb}: ranks ask for different groups: rank 0 for {_told(first)}, rank {rank} for "
                f"{_told(other)}; every rank of the communicator must name the same members in the "
                "same order. If several threads make groups at once, give each group a name",
                rank=rank,
                operation=verb,
            )


def _told(one: dict[str, Any]) -> str:
    named = f"{one['name']!r} of " if one["name"] else ""
    return f"{named}ranks {one['members']}"
