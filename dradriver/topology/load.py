"""Loads a machine from a profile's name, or from a file of any kind that the readers know."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from dradriver.topology import machine_codec, profiles, topo_m
from dradriver.topology.amd import smi
from dradriver.topology.ascend import npu_smi_matrix, npu_smi_table
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine
from dradriver.topology.synthetic import synthetic_uuid

_JSON = re.compile(r"\s*\{(?!\w)")  # markup begins with {code}
_PROFILE = re.compile(r"^(product|gpus)[ \t]*:", re.MULTILINE)  # whose comments may show a matrix
_XML = re.compile(r"<(system|cpu|pci|gpu)\b")  # markup begins with <pre>
# A JSON list of objects, as amd-smi prints it. A bracket alone may begin a shell's prompt.
_LIST = re.compile(r"\s*\[\s*\{")
_MOST_BYTES = 1 << 20  # a topo -m text of 72 GPUs has 50 KB


def read_machine(source: str | Path, *, seed: str = "") -> Machine:
    """Return the machine loaded from a profile's name or from a file of any known kind.

    Args:
        source: A profile's name, or the path of a file: a profile (YAML), this project's JSON of a machine, an NCCL or
            RCCL topology file, or the text of ``nvidia-smi topo -m``, ``amd-smi topology`` (or its JSON), ``rocm-smi
            --showtopo``, ``npu-smi info -t topo`` or ``npu-smi info``. The file's content shows which kind it is, not
            its name.
        seed: A text that gives simulated machines of one description different uuids. Without it, the real uuids in
            this project's JSON stay unchanged.

    Raises:
        TopologyError: There is no such profile or file, or its content is refused. The message has the file's name and
            the place.
    """
    if isinstance(source, str) and source in profiles.names():
        return profiles.load(source, seed=seed)
    path = Path(source)
    pasted = _text(path)

    # All readers but that of matrices get the text with "\n" as the only line end. The reader of matrices gets the text
    # as it was pasted: it removes colour codes first, and one between "\r" and "\n" would make two lines of one here.
    text = re.sub(r"\r*\n|\r", "\n", pasted)

    # The order matters: a later test would also fit some texts of an earlier kind. A matrix can begin with "<" if it
    # was copied from a page with markup. So a text with a matrix is XML only if it has a tag of a topology file.
    try:
        if _JSON.match(text):
            # Our own JSON.
            return _with_seed(machine_codec.decode(text), seed)
        is_matrix = topo_m.is_matrix(pasted)
        if text.lstrip().startswith("<") and (not is_matrix or _XML.search(text)):
            # Imported here: few callers need it, and importing it takes as long as all the rest.
            from dradriver.topology import nccl

            return nccl.read(text, name=path.stem, seed=seed)
        # The texts of AMD's tools, then of Huawei's.
        if _LIST.match(text) or smi.MARK.search(text):
            return smi.read(text, name=path.stem, seed=seed)
        if npu_smi_matrix.MARK.search(text):
            return npu_smi_matrix.read(text, name=path.stem, seed=seed)
        if npu_smi_table.MARK.search(text):
            return npu_smi_table.read(text, name=path.stem, seed=seed)
        if _PROFILE.search(text) or (":" in text and not is_matrix):
            from dradriver.topology.profiles import profile_reader

            return profile_reader.read(text, source=path.name, seed=seed)
        return topo_m.read(pasted, name=path.stem, seed=seed)
    except TopologyError as error:
        message = str(error)
        raise TopologyError(message if message.startswith(path.name) else f"{path}: {message}") from error


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)  # a device or pipe does not say how much it has
        if len(data) > _MOST_BYTES:
            raise TopologyError(
                f"{path}: the file has more than {_MOST_BYTES} bytes, so it does not describe a machine."
            )
        return data.decode("utf-8-sig")
    except FileNotFoundError as error:
        names = ", ".join(profiles.names())
        raise TopologyError(f"{path}: there is no such file and no such profile. Profiles: {names}.") from error
    except (OSError, UnicodeError, ValueError) as error:
        raise TopologyError(f"{path}: the file cannot be read as UTF-8 text: {error}.") from error


def _with_seed(machine: Machine, seed: str) -> Machine:
    if not seed:
        return machine
    gpus = (msgspec.structs.replace(gpu, uuid=synthetic_uuid(gpu.uuid, gpu.index, seed=seed)) for gpu in machine.gpus)
    return msgspec.structs.replace(machine, gpus=tuple(gpus))
