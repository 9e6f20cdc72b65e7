"""The figures as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.bench.throughput.numbers import middle, spread

_PARTS = ("controller", "webhook", "apiserver", "scheduler", "controller-manager", "etcd", "client")
Figures = Mapping[str, Any]


def bursts(results: Sequence[Figures], ours: Iterable[str]) -> str:
    """Return a table of all rounds of one size of cluster, and our variants' ratios to the others."""
    found = _by_variant(results)
    first, wide = results[0], _width(found)
    lines = [
        f"{first['nodes']} nodes, bursts of {first['pods']} pods: median (min-max) of "
        f"{len(next(iter(found.values())))} rounds",
        f"{'variant':<{wide}}{'pods/s':>20}  created  ungated    bound   ms CPU a pod: "
        + " ".join(part.replace("controller-manager", "manager") for part in _PARTS),
    ]
    for variant, rounds in found.items():
        times = [f"{middle(each[key] for each in rounds):7.2f}s" for key in ("created_s", "ungated_s", "bound_s")]
        costs = [f"{middle(each['cpu_ms_a_pod'].get(part, 0.0) for each in rounds):.1f}" for part in _PARTS]
        rate = spread((each["pods_per_s"] for each in rounds), 1)
        lines.append(f"{variant:<{wide}}{rate:>20} {' '.join(times)}   {' '.join(costs)}")
        lines += [f"  only {each['bound']} of {each['pods']} were bound" for each in rounds if not each["whole"]]
    for variant in (name for name in ours if name in found):
        # Round by round: whatever else the machine does meanwhile changes slowly.
        others = {
            name: [one["pods_per_s"] / other["pods_per_s"] for one, other in zip(found[variant], rounds, strict=False)]
            for name, rounds in found.items()
            if name != variant
        }
        lines += [f"{variant} / {name}: {spread(ratios, 2)}" for name, ratios in others.items()]
    for variant, rounds in found.items():
        asked = ", ".join(f"{what} {count:g}" for what, count in rounds[-1]["requests_a_pod"].items())
        lines.append(f"requests a pod, {variant}: {asked}")
    return "\n".join(lines)


def steadies(results: Sequence[Figures]) -> str:
    """Return a table of the steady streams."""
    first, wide = results[0], _width(_by_variant(results))
    lines = [
        f"{first['nodes']} nodes, {first['rate']:g} pods/s: milliseconds from POST, p50 / p90 / p99 / max",
        f"{'variant':<{wide}}{'answered':>26}{'gate gone':>26}{'bound':>26}   ms CPU a pod: controller webhook",
    ]
    for each in results:
        cells = [
            " / ".join(f"{each[f'{end}_ms'][part]:.0f}" for part in ("p50", "p90", "p99", "max"))
            for end in ("answered", "ungated", "bound")
        ]
        costs = [f"{each['cpu_ms_a_pod'].get(part, 0.0):.1f}" for part in ("controller", "webhook")]
        lines.append(f"{each['variant']:<{wide}}{''.join(f'{cell:>26}' for cell in cells)}   {' '.join(costs)}")
    return "\n".join(lines)


def starts(results: Sequence[Figures]) -> str:
    """Return a line for each variant's starts."""
    lines = [f"{results[0]['nodes']} nodes, start of a controller: median (min-max)"]
    found = _by_variant(results)
    wide = _width(found)
    for variant, rounds in found.items():
        ready = spread((each["ready_s"] for each in rounds), 2)
        cpu = middle(each["cpu_s"] for each in rounds)
        memory = [middle(each[when][key] for each in rounds)
                  for when, key in (("ready", "rss_mib"), ("later", "rss_mib"), ("later", "peak_mib"))]  # fmt: skip
        lines.append(
            f"{variant:<{wide}}ready after {ready} s, {cpu:.2f} s CPU; "
            f"{memory[0]:.0f} MiB then, {memory[1]:.0f} a little later, {memory[2]:.0f} at most"
        )
    return "\n".join(lines)


def writes(results: Sequence[Figures]) -> str:
    """Return a line for each kind of write."""
    parts = ("apiserver", "etcd", "webhook")
    lines = [f"{results[0]['variant']}: ms CPU a write: {' '.join(parts)}, and ms until the next one"]
    for each in results:
        costs = " ".join(f"{each['cpu_ms'].get(part, 0.0):5.2f}" for part in parts)
        lines.append(f"{each['write']:<46}{costs}   {each['ms']:5.2f}")
    return "\n".join(lines)


def _width(variants: Iterable[str]) -> int:
    return max(10, *(len(variant) + 2 for variant in variants))


def _by_variant(results: Iterable[Figures]) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {}
    for each in results:
        found.setdefault(each["variant"], []).append(each)
    return found
