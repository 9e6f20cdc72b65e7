"""How a refusal is worded: the place, what stands there, what to write instead. A pod's text is bounded and quoted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dradriver.allocator.request import Strategy
from dradriver.allocator.set_policies import POLICIES
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.vocabulary.values import MOST_GPUS, STRATEGIES
from dradriver.yamltext.value_hints import hint

# What a value is not, and what to write; after "<key>: <value> is no".
RATE: Final = "bandwidth; write a number of GB/s above zero, as 100 or 100GB/s"
MEMORY: Final = "memory of a GPU; write a quantity of at least 1Mi, as 40Gi"
PRODUCT: Final = "product; write the full name as nvidia-smi -L gives it, or a glob, as NVIDIA A100*"
ARCHITECTURE: Final = "architecture; write one word, as hopper"
DRIVER: Final = "version of a driver; write it as nvidia-smi does, as 580 or 580.95.05"
CUDA: Final = "version of CUDA; write it as nvidia-smi does, as 12.4"
GPUS: Final = f"count of GPUs; write a whole number from 1 to {MOST_GPUS}"
SHARE: Final = "share of a GPU; write hundredths from 0.01 to 0.99, as 0.5, and for whole GPUs how many"
CORES: Final = "percentage of a GPU's compute; write a whole number from 1 to 100"
MIG_PROFILE: Final = "MIG profile; write slices and memory as nvidia-smi mig -lgip does, as 1g.10gb"
MIG_RESOURCE: Final = "MIG profile's resource; write slices and memory, as nvidia.com/mig-1g.10gb"
PRODUCT_RESOURCE: Final = "product's resource; write its name with - for blanks, as nvidia.com/gpu.A100-SXM4-40GB"
GANG: Final = "name of a gang; write lower-case letters, digits and -, as train-1, or auto"
SET_NAME: Final = (
    f"name of a claim to share; write up to 63 lower-case letters, digits and -, as train-1, and not "
    f"{names.CLAIM_PREFIX}…, which the driver's own claims are called"
)
MANY: Final = "count; write a whole number from 1 to 9999"
PODS: Final = "count; write a whole number from 1 to 9999, or 4-8 where 4 pods of 8 may start"
NEAR: Final = "level of the network; write one word, as leaf, and preferred before it where a wider one will do"
DURATION: Final = "duration; write hours, minutes and seconds, as 30m or 1h30m"
FEW: Final = "count of GPUs; write a whole number from 0 to 99"

MOST_SHOWN: Final = 20  # names of policies in a message


def shown(text: str) -> str:
    """Return text from a pod as messages quote it: bounded, and without control characters that would forge logs."""
    return repr(text if len(text) <= 64 else text[:61] + "...")


def is_no(key: str, text: str, what: str) -> WordError:
    """Return the message that refuses an annotation's value; ``what`` is one of the texts above."""
    return WordError(f"{key}: {shown(text)} is no {what}")


def not_one_of(key: str, text: str, allowed: Iterable[str]) -> WordError:
    """Return the message that refuses a value that is none of those allowed."""
    words = list(allowed)
    return WordError(f"{key}: {shown(text)} is not allowed; write one of {', '.join(words)}{hint(text, words)}")


def no_policy(key: str, text: str, named: Iterable[str] = ()) -> WordError:
    """Return the message that refuses an unknown policy; ``named`` are those of the policies file."""
    if text.strip() in STRATEGIES:
        return WordError(
            f"{key}: {shown(text)} is not allowed alone: it is a strategy, which stands behind a policy and a comma; "
            f"write best-effort,{text.strip()}"
        )
    names = list(dict.fromkeys((*POLICIES, *named)))
    shown_names = names if len(names) <= MOST_SHOWN else [*names[:MOST_SHOWN], f"{len(names) - MOST_SHOWN} more"]
    return WordError(
        f"{key}: {shown(text)} is not allowed; write one of {', '.join(shown_names)}, and after a comma one of "
        f"{', '.join(Strategy)} if you like{hint(text.partition(',')[0].strip(), names)}"
    )


def unknown(key: str, allowed: Iterable[str]) -> WordError:
    """Return the message that refuses an annotation that nothing reads."""
    words = list(allowed)
    return WordError(f"annotation {shown(key)} is unknown{hint(key, words)}; known are {', '.join(words)}")


def contradicts(key: str, text: str, other: str) -> WordError:
    """Return the message that refuses a value that another one contradicts."""
    return WordError(f"{key}: {shown(text)} contradicts {other}; write one of the two")
