"""A question to ``gputopo plan``, from options or from a line of ``--batch``, and the request that it makes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from dradriver.allocator import Request, Whole
from dradriver.allocator.choice.numbering import listed
from dradriver.api.base import names
from dradriver.api.pod.annotations import Annotations
from dradriver.api.policies.policy_sections import DEFAULTS, Policies
from dradriver.api.vocabulary import annotation_words
from dradriver.errors import DriverError
from dradriver.topology import peer_access
from dradriver.topology.machine import Machine
from dradriver.topology.vendors import VENDORS

_FREE = re.compile(r"(?a:(\d{1,4})(?:-(\d{1,4}))?)")


class PlanError(DriverError):
    """A question to ``gputopo plan`` is not valid."""

    reason = "BadPlan"


class Question(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A question to ``gputopo plan``: the fields of one line of ``--batch``.

    Attributes:
        machine: A profile's name or a file.
        free: The numbers of the free GPUs; if left out, all GPUs are free.
        gpus: The number of requested GPUs; may be left out if ``containers`` gives it.
        policy: As the annotation ``policy``.
        workload: As the annotation ``workload``. The file of ``--policies`` says what the word requests. The file can
            also define further values of ``policy``.
        required: As the annotation ``required``: words in a list or separated by commas.
        preferred: As the annotation ``preferred``, best first.
        strategy: As the annotation of this name. The same is true of further fields that are called like annotations.
        min_bandwidth: GB/s, a number or text.
        min_busbw: GB/s, a number or text.
        product: Full name or glob. If the machine's source names no product, it is the product of the machine's GPUs.
        cpu: The CPUs of the machine, if its source does not name them: ``rome``.
        nccl_version: The NCCL that runs on the machine, ``2.23``; the newest if neither this nor the machine has one.
        architecture: One word.
        min_memory: A quantity: ``40Gi``.
        min_driver: A version of the GPU driver: ``580``.
        min_cuda: A version: ``12.4``.
        vendor: The GPU vendor; by default the machine's, for a cluster NVIDIA.
        max_cross_nvswitch_gpus: As the annotation: a number of GPUs.
        prefer_same_numa: As the annotation: true or false.
        include: Numbers of GPUs that must be in the set.
        exclude: Numbers of GPUs that must not be in the set.
        message_size: Bytes or a quantity (``1Gi``); the size of the all-reduce whose time is estimated.
        containers: GPUs or fractions of each container; one container if left out.
        share: As the annotation, like the next three fields: a fraction of one GPU for each container.
        memory: A quantity: ``10Gi``.
        cores: Percent.
        mig_profile: ``1g.10gb``.
        parts: The allocated shares and MIG slices on the GPUs: ``0:0.5,3:1g.10gb@6``.
    """

    machine: str
    free: list[int] | None = None
    gpus: int | None = None
    policy: str = ""
    workload: str = ""
    required: list[str] | str = ""
    preferred: list[str] | str = ""
    containers: list[int] | None = None
    strategy: str = ""
    min_bandwidth: float | str = ""
    min_busbw: float | str = ""
    product: str = ""
    cpu: str = ""
    nccl_version: str = ""
    architecture: str = ""
    min_memory: str = ""
    min_driver: str = ""
    min_cuda: str = ""
    vendor: str = ""
    max_cross_nvswitch_gpus: int | None = None
    prefer_same_numa: bool = False
    include: list[int] = []
    exclude: list[int] = []
    message_size: int | str = ""
    share: float | str = ""
    memory: str = ""
    cores: int | str = ""
    mig_profile: str = ""
    parts: str = msgspec.field(default="", name="fractions")


def with_facts_moved(machine: Machine, question: Question, policies: Policies) -> tuple[Machine, Question]:
    """Move facts from a question of ``gputopo plan`` into the machine, and return both.

    So the allocator sees a complete machine. The facts are the product, the CPUs and NCCL's version. If the machine had
    no product, it gets the question's, and the returned question no longer requests a product and CPUs. Otherwise the
    question is returned unchanged.

    Raises:
        TopologyError: The product, CPU or NCCL version is not known.
        PlanError: The question names a vendor that is not the machine's.
    """
    if question.vendor in VENDORS and question.vendor != machine.vendor.word:
        raise PlanError(f"vendor {question.vendor}: the machine has GPUs of {machine.vendor.word}")
    product = "" if any(gpu.product for gpu in machine.gpus) else question.product
    version = question.nccl_version or ("" if machine.nccl_version else policies.nccl.version)
    if product or question.cpu or version:
        from dradriver.topology.complete import complete  # here, for few need it

        machine = complete(machine, product=product, cpu=question.cpu, nccl_version=version)
    return machine, msgspec.structs.replace(question, product="", cpu="") if product else question


def request(question: Question, policies: Policies = DEFAULTS) -> Request:
    """Return the request of a pod that has the annotations and limits of the question.

    Raises:
        PlanError: The number of GPUs is missing, or contradicts the containers.
        DriverError: The annotations do not allow a value.
    """
    # 1. The number of GPUs of each container. A request for a fraction of a GPU needs none.
    counts = question.containers
    is_fraction = any(text != "" for text in (question.share, question.memory, question.cores, question.mig_profile))
    if counts is None:
        if question.gpus is None and not is_fraction:
            raise PlanError("how many GPUs? Give gpus, or containers with the count of each")
        counts = [1 if question.gpus is None else question.gpus]
    elif question.gpus is not None and question.gpus != sum(counts):
        raise PlanError(f"gpus {question.gpus} contradicts containers {listed(counts)}, which make {sum(counts)}")
    gpus_annotation = annotation_words.BY_KEY[names.GPUS]
    gpus_of_container = {str(number): gpus_annotation.read("gpus", str(count)) for number, count in enumerate(counts)}

    # 2. The request by the annotations, which the question's fields of the same names stand for.
    gpu_request = Annotations(_annotations(question), policies).request(gpus_of_container)
    if not isinstance(gpu_request, Whole):
        if question.include or question.exclude or question.message_size != "":
            raise PlanError(
                "include, exclude and message_size are for whole GPUs. For fractions, say which GPUs are free."
            )
        return gpu_request

    # 3. What no annotation can say.
    include, exclude = tuple(question.include), tuple(question.exclude)
    return msgspec.structs.replace(gpu_request, include=include, exclude=exclude, weights=policies.preference)


def _annotations(question: Question) -> dict[str, str]:
    """Return the annotations of the question's fields, except the number of GPUs."""
    annotations: dict[str, str] = {}
    for word in annotation_words.EVERY:
        value = getattr(question, word.name.replace("-", "_"), "") if word.key != names.GPUS else ""
        if isinstance(value, list):
            annotations[word.key] = ",".join(value)
        elif isinstance(value, bool):
            if value:
                annotations[word.key] = "true"
        elif value not in ("", None):
            annotations[word.key] = f"{value:g}" if isinstance(value, float) else str(value)
    return annotations


def free_gpus(machine: Machine, question: Question) -> Sequence[int]:
    """Return the numbers of the free GPUs: those in the question, else all that are not in MIG mode."""
    free = [gpu.index for gpu in machine.gpus if gpu.mig is None] if question.free is None else question.free
    off = {machine.gpus[i].index for i in peer_access.kept_off(machine)}
    return [index for index in free if index not in off]


def numbers(text: str, *, option: str) -> list[int]:
    """Return the numbers in a text such as ``0,1,4`` or ``0-3,6``; an empty list for an empty text.

    ``option`` is the name of the option with the text, for messages.

    Raises:
        PlanError: The text has another form.
    """
    picked: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _FREE.fullmatch(part)
        if match is None:
            raise PlanError(f"{option}: {part!r} is no number. Write 0,1,4 or 0-3,6.")
        first = int(match[1])
        picked += range(first, int(match[2] or first) + 1)
    return picked
