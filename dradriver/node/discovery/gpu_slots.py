"""Which slot of the machine each GPU is in: the GPU's number, which stays the same when others are lost.

Drivers number the GPUs that they find, so a number may be another GPU's after a reboot. Rules of the policies file name
GPUs by number. The agent therefore keeps a table of slots on the node, one file each, and gives the GPUs of every
reading their numbers by it:

1. A GPU with a UUID of the table has that slot, wherever it is now.
2. A GPU at the PCI address of a GPU that is missing replaces it, and takes its slot.
3. Any other GPU is new. It gets the driver's number if no slot has that one, else the lowest that is free.

A missing GPU keeps its slot until an administrator names it in the Node's annotation ``gpu.topology/removed-gpus``.

Where the table is empty, or a part of it cannot be read, the published slices tell which number a GPU had. If they do
not tell either and a part of the table cannot be read, a new GPU may be one of the table. Then its slot is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from dradriver.api.slices.lost_gpus import LostGpu
from dradriver.errors import DriverError
from dradriver.node.journal import Journal
from dradriver.node.lock import locked
from dradriver.topology.machine import Gpu, Machine

logger = logging.getLogger(__name__)

VERSION: Final = 1


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the table.

    Attributes:
        number: The slot's.
        uuid: Of the GPU that is in it, or was last.
        pci: Where that GPU was seen last; empty if the driver does not say.
    """

    number: int
    uuid: str
    pci: str = ""


class Published(NamedTuple):
    """What the node's slices say.

    Attributes:
        machine: The machine; None if no slice describes one.
        lost: The GPUs that it lost.
    """

    machine: Machine | None
    lost: Collection[LostGpu]


class Slots:
    """The table of this node's slots. Instances of the agent that run side by side share it.

    Attributes:
        is_settled: Whether the numbers of the last reading are final. They are not while the table alone does not give
            them and the published slices were not read yet.
        missing: The GPUs of the table that the last reading did not find, also those that were lost before a reboot.
    """

    def __init__(
        self,
        state_dir: Path | None,
        *,
        published: Callable[[], Published | None],
        is_removed: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Open the table; no file is touched.

        Args:
            state_dir: Holds the table's folder; None for an agent without one, which remembers the table itself.
            published: Gives what the node's slices say; None until they were read.
            is_removed: Says whether the GPU of a UUID is gone for good.
        """
        self._journal = None if state_dir is None else _Table(state_dir / "slots")
        self._lock = None if state_dir is None else state_dir / "slots.lock"
        self._published = published
        self._is_removed = is_removed
        self._table: dict[int, Slot] = {}
        # Keys of entries that cannot be read: slots' numbers as text, or "?" if the whole table cannot be read.
        self._unread: frozenset[str] = frozenset()
        self._unwritten: dict[int, Slot] = {}  # what could not be written yet
        self._said: set[str] = set()
        self._is_swept = False
        self.is_settled = False
        self.missing: tuple[LostGpu, ...] = ()

    async def number(self, machine: Machine) -> Machine:
        """Return a machine with the slots of its GPUs as their numbers. It never fails."""
        if self._journal is None or self._lock is None:
            return self._number(machine)
        try:
            async with locked(self._lock):
                self._read(self._journal)
                return self._number(machine)
        except (DriverError, OSError) as error:
            self._say(f"the table of slots cannot be used now, its last state stands: {error}")
            if not self._table:
                self._unread |= {"?"}
            return self._number(machine)

    def _read(self, journal: Journal[Slot]) -> None:
        if not self._is_swept:
            journal.sweep()
            self._is_swept = True
        entries = journal.read()
        self._table = {entry.value.number: entry.value for entry in entries.values()}
        uuids = {slot.uuid for slot in self._table.values()}
        left = ((number, slot) for number, slot in self._unwritten.items() if number not in self._table)
        self._unwritten = {number: slot for number, slot in left if slot.uuid not in uuids}
        self._table |= self._unwritten
        self._unread = frozenset(journal.unreadable_keys())

    def _number(self, machine: Machine) -> Machine:
        """Return the machine with its GPUs numbered by their slots; write new slots.

        A GPU whose slot is unknown, because entries of the table cannot be read, gets a number that no slot has.
        ``numbers`` is by uuid; the table is by slot number.
        """
        # 1. The slots in the table, without those that an administrator gave up. If the table is empty or damaged, the
        #    published slices give more.
        table = dict(self._table)
        self._remove_given_up(table, machine)
        numbers, without_slot = _known(table, machine.gpus)
        self.is_settled = True
        if without_slot and (self._unread or not table):
            published = self._published()
            if published is None:  # not read from the API server yet
                self.is_settled = False
            else:
                table |= _adopted(table, published, machine, self._is_removed)
                numbers, without_slot = _known(table, machine.gpus)
                self._unread -= set(map(str, table))  # these slots are known again

        # 2. New GPUs get the driver's number if that slot is free, else the lowest free slot. But while the table is
        # incomplete, a GPU that is not in it may have a slot already.
        unknown: list[Gpu] = []
        for gpu in without_slot:
            if self._unread or not self.is_settled:
                unknown.append(gpu)
            else:
                taken = table.keys() | numbers.values()
                numbers[gpu.uuid] = gpu.index if gpu.index not in taken else _lowest_free(taken)
        in_use = {number: _slot(gpu, number) for gpu in machine.gpus if (number := numbers.get(gpu.uuid)) is not None}
        self._write(table | in_use)  # ``self._table`` is this table from here on
        present = {gpu.uuid for gpu in machine.gpus}
        away = (slot for slot in self._table.values() if slot.uuid not in present)
        self.missing = tuple(LostGpu(slot.number, slot.pci, slot.uuid) for slot in away)

        # 3. GPUs whose slot is unknown are numbered above all slots.
        taken = {*self._table, *(int(key) for key in self._unread if key.isdigit())}
        for gpu in unknown:
            numbers[gpu.uuid] = max(taken, default=-1) + 1
            taken.add(numbers[gpu.uuid])
        if self.is_settled and unknown:
            self._say(
                f"which slot a GPU has is not known of {', '.join(gpu.uuid for gpu in unknown)}: entries of the table "
                "cannot be read. Rules by number do not change these GPUs, and nobody gets those that may be in an "
                "exclusive partition. Remove the table's files that were set aside, and they get the numbers that are "
                "free"
            )
        return _numbered(machine, numbers, {gpu.uuid for gpu in unknown})

    def _remove_given_up(self, table: dict[int, Slot], machine: Machine) -> None:
        """Remove the slots of missing GPUs that an administrator removed for good, from the table and from the disk."""
        present = {gpu.uuid for gpu in machine.gpus}
        for number, slot in list(table.items()):
            if slot.uuid in present or not self._is_removed(slot.uuid):
                continue
            try:
                if self._journal is not None:
                    self._journal.remove(str(number))
            except (DriverError, OSError) as error:
                self._say(f"slot {number} cannot be cleared: {error}")
                continue
            del table[number]
            self._table.pop(number, None)
            self._unwritten.pop(number, None)
            logger.warning("slot %d is cleared: GPU %s (%s) was removed for good", number, slot.uuid, slot.pci)

    def _write(self, table: Mapping[int, Slot]) -> None:
        """Write what is new of a table; what cannot be written now is tried again at the next reading."""
        for number, slot in sorted(table.items()):
            before = self._table.get(number)
            if slot == before and number not in self._unwritten:
                continue
            try:
                if self._journal is not None:
                    self._journal.write(slot)
                self._unwritten.pop(number, None)
            except (DriverError, OSError) as error:
                self._unwritten[number] = slot
                self._say(f"slot {number} is not written: {error}")
            if before is None or before.uuid != slot.uuid:
                instead = f" in place of {before.uuid}" if before is not None else ""
                logger.info("GPU %s (%s) has slot %d%s", slot.uuid, slot.pci, number, instead)
        self._table = dict(table)

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.error("%s", text)


class _Table(Journal[Slot]):
    def __init__(self, folder: Path) -> None:
        readers = {VERSION: msgspec.json.Decoder(Slot).decode}
        super().__init__(folder, readers, version=VERSION, key=lambda slot: str(slot.number))


def _slot(gpu: Gpu, number: int) -> Slot:
    return Slot(number=number, uuid=gpu.uuid, pci=gpu.pci)


def _lowest_free(taken: Collection[int]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _known(table: Mapping[int, Slot], gpus: Collection[Gpu]) -> tuple[dict[str, int], list[Gpu]]:
    """Return the numbers of the GPUs that the table gives one, by UUID, and the other GPUs."""
    by_uuid = {slot.uuid: number for number, slot in table.items()}
    numbers = {gpu.uuid: by_uuid[gpu.uuid] for gpu in gpus if gpu.uuid in by_uuid}
    free = {slot.pci: number for number, slot in table.items() if slot.pci and slot.uuid not in numbers}
    replacing = {gpu.uuid: free[gpu.pci] for gpu in gpus if gpu.uuid not in numbers and gpu.pci in free}
    numbers |= replacing
    return numbers, [gpu for gpu in gpus if gpu.uuid not in numbers]


def _adopted(
    table: Mapping[int, Slot], published: Published, machine: Machine, is_removed: Callable[[str], bool]
) -> dict[int, Slot]:
    """Return the slots that published slices tell of and the table has not.

    Slices without any GPU of the machine are of another one, as of a simulated one before: they tell nothing of it.
    An agent that kept no table published the driver's numbers. If one of these is a lost GPU's, too, the driver has
    numbered the GPUs again since the loss. It does so by PCI address, so that order tells the numbers of before.
    """
    gpus = () if published.machine is None else published.machine.gpus
    published_slots = [_slot(gpu, gpu.index) for gpu in gpus if gpu.has_slot is not False]
    published_slots += [Slot(number=gpu.index, uuid=gpu.uuid, pci=gpu.pci) for gpu in published.lost]
    if {slot.uuid for slot in published_slots}.isdisjoint(gpu.uuid for gpu in machine.gpus):
        return {}
    published_slots = [slot for slot in published_slots if not is_removed(slot.uuid)]
    if not table and not _differ(slot.number for slot in published_slots) and all(slot.pci for slot in published_slots):
        in_order = enumerate(sorted(published_slots, key=lambda slot: slot.pci))
        published_slots = [msgspec.structs.replace(slot, number=number) for number, slot in in_order]

    # The table's own slots stand.
    uuids = {slot.uuid for slot in table.values()}
    adopted: dict[int, Slot] = {}
    for slot in published_slots:
        if slot.uuid not in uuids and slot.number not in table:
            adopted.setdefault(slot.number, slot)
    return adopted


def _differ(numbers: Iterable[int]) -> bool:
    every = list(numbers)
    return len(set(every)) == len(every)


def _numbered(machine: Machine, numbers: Mapping[str, int], unknown: Collection[str]) -> Machine:
    """Return the machine with these numbers, its GPUs in their order."""
    gpus = machine.gpus
    order = sorted(range(len(gpus)), key=lambda position: numbers[gpus[position].uuid])
    own = tuple(
        msgspec.structs.replace(
            gpu,
            index=numbers[gpu.uuid],
            driver_index=msgspec.UNSET if numbers[gpu.uuid] == gpu.index else gpu.index,
            has_slot=False if gpu.uuid in unknown else msgspec.UNSET,
        )
        for gpu in (gpus[position] for position in order)
    )
    return machine if own == gpus else msgspec.structs.replace(machine.subset(order), gpus=own)
