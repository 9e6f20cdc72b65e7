"""Builds error messages about annotations: the place, the bad text, and what to write instead.

Text from a pod is shortened and quoted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dradriver.allocator.request import Strategy
from dradriver.allocator.set_policies import POLICIES
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.vocabulary.values import MOST_GPUS, STRATEGIES
from dradriver.counted import first_of
from dradriver.yamltext.value_hints import hint

# What a value is not, and what to write instead; after "<key>: <value> is not".
RATE: Final = "a bandwidth. Write a number of GB/s above zero, for example 100 or 100GB/s."
MEMORY: Final = "an amount of GPU memory. Write a quantity of at least 1Mi, for example 40Gi."
PRODUCT: Final = (
    "the name of a GPU product. Write the full name that nvidia-smi -L prints, or a pattern such as NVIDIA A100*."
)
ARCHITECTURE: Final = "the name of a GPU architecture. Write one name, for example hopper."
DRIVER: Final = "a driver version. Write it as nvidia-smi prints it, for example 580 or 580.95.05."
CUDA: Final = "a CUDA version. Write it as nvidia-smi prints it, for example 12.4."
GPUS: Final = f"a number of GPUs. Write a whole number from 1 to {MOST_GPUS}."
SHARE: Final = (
    "a share of a GPU. Write a number from 0.01 to 0.99 with at most two decimals, for example 0.5. For whole GPUs, "
    "set a GPU limit instead."
)
CORES: Final = "a percentage of a GPU's compute. Write a whole number from 1 to 100."
MIG_PROFILE: Final = "a MIG profile. Write slices and memory as nvidia-smi mig -lgip prints them, for example 1g.10gb."
MIG_RESOURCE: Final = "a MIG resource. Write slices and memory, for example nvidia.com/mig-1g.10gb."
PRODUCT_RESOURCE: Final = (
    "the resource of a GPU product. Write the product's name with - instead of blanks, for example "
    "nvidia.com/gpu.A100-SXM4-40GB."
)
GANG: Final = "the name of a gang. Write lower-case letters, digits and -, for example train-1, or write auto."
SET_NAME: Final = (
    f"a name for a shared claim. Write up to 63 lower-case letters, digits and -, for example train-1. The name must "
    f"not begin with {names.CLAIM_PREFIX}, which the driver uses for its own claims."
)
MANY: Final = "a count. Write a whole number from 1 to 9999."
PODS: Final = (
    "a number of pods. Write a whole number from 1 to 9999, or a range such as 4-8 if 4 of 8 pods are enough to start."
)
NEAR: Final = (
    "a network level. Write the level's name, for example leaf. Write preferred leaf if a wider level is acceptable."
)
DURATION: Final = "a duration. Write hours, minutes and seconds, for example 30m or 1h30m."
FEW: Final = "a number of GPUs. Write a whole number from 0 to 99."

MOST_SHOWN: Final = 20  # names of policies in a message


def shown(text: str) -> str:
    """Return text from a pod in a form for messages: shortened, and without control characters.

    Control characters could forge lines of a log.
    """
    return repr(text if len(text) <= 64 else text[:61] + "...")


def is_not(key: str, text: str, form: str) -> WordError:
    """Return the error that an annotation's value is not of the expected form.

    Args:
        key: The annotation's name.
        text: The value that its author wrote.
        form: The form that is allowed, for the message.
    """
    return WordError(f"{key}: {shown(text)} is not {form}")


def not_one_of(key: str, text: str, allowed: Iterable[str]) -> WordError:
    """Return the error about an annotation (``key``) with a text that is not allowed.

    ``allowed`` are the allowed texts.
    """
    words = list(allowed)
    return WordError(f"{key}: {shown(text)} is not allowed{hint(text, words)}. Write one of: {', '.join(words)}.")


def no_policy(key: str, text: str, named: Iterable[str] = ()) -> WordError:
    """Return the error about an annotation (``key``) whose text is an unknown policy.

    ``named`` are the policies that the policies file defines.
    """
    if text.strip() in STRATEGIES:
        return WordError(
            f"{key}: {shown(text)} is a strategy, and a strategy needs a policy in front of it. Write "
            f"best-effort,{text.strip()}."
        )
    names = list(dict.fromkeys((*POLICIES, *named)))
    shown_names = first_of(names, MOST_SHOWN)
    return WordError(
        f"{key}: {shown(text)} is not a known policy{hint(text.partition(',')[0].strip(), names)}. Write one of: "
        f"{shown_names}. A comma and a strategy ({', '.join(Strategy)}) can follow."
    )


def unknown(key: str, allowed: Iterable[str]) -> WordError:
    """Return the error about an unknown annotation ``key``; ``allowed`` are the known ones."""
    words = list(allowed)
    return WordError(
        f"The annotation {shown(key)} is unknown{hint(key, words)}. Known annotations: {', '.join(words)}."
    )


def contradicts(key: str, text: str, other: str) -> WordError:
    """Return the error about an annotation that contradicts another setting.

    Args:
        key: The annotation's name.
        text: The value that its author wrote.
        other: The other setting, as text for the message.
    """
    return WordError(f"{key}: {shown(text)} contradicts {other}. Write only one of the two.")
