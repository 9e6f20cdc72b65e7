"""Line rates of direct links: what a link carries by its maker's data sheet, where NCCL and RCCL count less."""

from __future__ import annotations

# Signalling rate of one link by the bandwidth that NCCL counts for it, GB/s in one direction (data sheets of P100,
# V100/A100, A40/RTX 3090, H100, B200). NCCL's figure is what 128-byte packets leave of it.
_LINE_GBPS = {18.0: 20.0, 20.0: 25.0, 12.0: 14.0625, 20.6: 25.0, 40.1: 50.0}
# The same of AMD's by RCCL's figure: MI50 to MI100, MI200, MI300 (which is what RCCL takes MI350 for, too).
_LINE_GBPS |= {24.0: 46.0, 36.0: 50.0, 48.0: 64.0}


def line_gbps(link_gbps: float) -> float:
    """Return the line rate of a link that NCCL counts as ``link_gbps``: 20 gives 25 (V100), 20.6 25 (H100)."""
    return _LINE_GBPS.get(round(link_gbps, 2), link_gbps)


def line_rate_gbps(links: int, link_gbps: float) -> int:
    """Return the line rate of so many links in one direction, whole GB/s.

    It is what wishes of least bandwidth are about, and whole because attributes of devices are: what one way of asking
    has and another has not must not hang on a fraction.
    """
    return int(links * line_gbps(link_gbps) + 1e-6)
