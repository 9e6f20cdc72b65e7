"""Which slot of the server each GPU is in. The slot is the GPU's number.

Drivers number the GPUs that they find. So after a reboot, or when a GPU is lost, a number may belong to another GPU.
Rules of the policies file name GPUs by number, so the numbers must not shift. The agent therefore keeps a table of
slots on the node, with one file for each slot. It numbers the GPUs of every reading by this table:

1. A GPU with a UUID of the table has that slot, wherever it is now.
2. A GPU at the PCI address of a GPU that is missing replaces it, and takes its slot.
3. Any other GPU is new. It gets the driver's number if that slot is free, else the lowest free slot.

A missing GPU keeps its slot until an administrator names it in the Node's annotation ``gpu.topology/removed-gpus``.

If the table is empty or can be read only in part, the agent also takes numbers from the published slices. If a file of
the table cannot be read and the slices do not name a GPU, this GPU gets no slot: the file may have its slot.
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
    """One entry of the table of slots, the numbered places of GPUs in the server.

    Attributes:
        number: The number of the slot.
        uuid: The uuid of the GPU that is in the slot, or was in it last.
        pci: The PCI address at which that GPU was seen last; empty if the driver does not report the address.
    """

    number: int
    uuid: str
    pci: str = ""


class Published(NamedTuple):
    """The machine that the node's slices describe.

    Attributes:
        machine: The machine; None if no slice describes one.
        lost: The GPUs that the machine has lost.
    """

    machine: Machine | None
    lost: Collection[LostGpu]


class Slots:
    """The table of this node's slots: each GPU's place in the server, by number.

    Two instances of the agent that run at the same time share the table.

    Attributes:
        is_settled: Whether the numbers of the last reading are final. They are not final if the table is incomplete and
            the published slices were not read yet.
        missing: The GPUs of the table that the last reading did not find, also those that were lost before a reboot.
    """

    def __init__(
        self,
        state_dir: Path | None,
        *,
        published: Callable[[], Published | None],
        is_removed: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Store the arguments; no file is touched.

        Args:
            state_dir: Folder that contains the folder of the table; None keeps the table in memory.
            published: Returns the machine that the node's slices describe; None until the slices were read.
            is_removed: Returns whether an administrator removed the GPU with this UUID permanently.
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
        """Return a copy of the machine whose GPUs are numbered by their slots (fixed places).

        This method raises no error. If the table cannot be read, the method uses the table as it was read last.
        """
        if self._journal is None or self._lock is None:
            return self._number(machine)
        try:
            async with locked(self._lock):
                self._read(self._journal)
                return self._number(machine)
        except (DriverError, OSError) as error:
            self._say(
                "The table of slots (the numbers of the node's GPUs) cannot be read now. Its last state stays in "
                f"force: {error}"
            )
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
        """Return the machine with its GPUs numbered by their slots; write new slots to the table.

        If entries of the table cannot be read, the slot of a GPU may be unknown. This GPU gets a number that no slot
        has.
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
                f"The slots of these GPUs are unknown, because files of the table of slots cannot be read: "
                f"{', '.join(gpu.uuid for gpu in unknown)}. Rules by number do not apply to them. No pod "
                "gets one of these GPUs if it could be in an exclusive partition. Remove the files of the table that "
                "the agent renamed, and these GPUs get free numbers."
            )
        return _numbered(machine, numbers, {gpu.uuid for gpu in unknown})

    def _remove_given_up(self, table: dict[int, Slot], machine: Machine) -> None:
        """Remove the slots of GPUs that an administrator removed permanently.

        The slots are removed from ``table`` and from the disk. A GPU that is present in ``machine`` keeps its slot.
        """
        present = {gpu.uuid for gpu in machine.gpus}
        for number, slot in list(table.items()):
            if slot.uuid in present or not self._is_removed(slot.uuid):
                continue
            try:
                if self._journal is not None:
                    self._journal.remove(str(number))
            except (DriverError, OSError) as error:
                self._say(f"The file of slot {number} cannot be removed: {error}")
                continue
            del table[number]
            self._table.pop(number, None)
            self._unwritten.pop(number, None)
            logger.warning(
                "Slot %d is free again, because GPU %s (%s) was removed permanently.", number, slot.uuid, slot.pci
            )

    def _write(self, table: Mapping[int, Slot]) -> None:
        """Write the new entries of a table to the disk; a failed write is tried again at the next reading."""
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
                self._say(f"The file of slot {number} cannot be written: {error}")
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
    """Return the slot numbers of the GPUs that the table knows, and the other GPUs.

    The numbers are by UUID. A GPU at the PCI address of a missing GPU has that GPU's slot.
    """
    by_uuid = {slot.uuid: number for number, slot in table.items()}
    numbers = {gpu.uuid: by_uuid[gpu.uuid] for gpu in gpus if gpu.uuid in by_uuid}
    free = {slot.pci: number for number, slot in table.items() if slot.pci and slot.uuid not in numbers}
    replacing = {gpu.uuid: free[gpu.pci] for gpu in gpus if gpu.uuid not in numbers and gpu.pci in free}
    numbers |= replacing
    return numbers, [gpu for gpu in gpus if gpu.uuid not in numbers]


def _adopted(
    table: Mapping[int, Slot], published: Published, machine: Machine, is_removed: Callable[[str], bool]
) -> dict[int, Slot]:
    """Return the slots that only the published slices name, to add them to the table.

    The numbers of GPUs in the slices are their slots. If the slices name no GPU of this machine, they describe another
    machine, for example a simulated one. Then the result is empty.

    Old agents kept no table and published the driver's numbers. Such slices may give a GPU and a lost GPU the same
    number, because the driver numbered the GPUs again after the loss. Then all GPUs are numbered in the order of their
    PCI addresses, as the driver did before the loss.
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
    """Return the machine with its GPUs numbered by slot, and sorted by number.

    Args:
        machine: The machine with the driver's numbers.
        numbers: The new number of each GPU, by UUID.
        unknown: UUIDs of the GPUs whose place in the server is unknown. They are marked as GPUs without a slot.
    """
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
