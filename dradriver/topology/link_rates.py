"""Line rates of direct links, in the maker's data sheet. NCCL and RCCL count less bandwidth than the line rate."""

from __future__ import annotations

# Signalling rate of one link by the bandwidth that NCCL counts for it, GB/s in one direction (data sheets of P100,
# V100/A100, A40/RTX 3090, H100, B200). NCCL's figure is what 128-byte packets leave of it.
_LINE_GBPS = {18.0: 20.0, 20.0: 25.0, 12.0: 14.0625, 20.6: 25.0, 40.1: 50.0}
# The same of AMD's by RCCL's figure: MI50 to MI100, MI200, MI300 (which is what RCCL takes MI350 for, too).
_LINE_GBPS |= {24.0: 46.0, 36.0: 50.0, 48.0: 64.0}


def line_gbps(link_gbps: float) -> float:
    """Return the line rate of a link, GB/s, from the bandwidth that NCCL counts for it.

    Examples: the line rate is 25 for NCCL's 20 (V100), and also for its 20.6 (H100). A bandwidth that is not in the
    table is returned unchanged.
    """
    return _LINE_GBPS.get(round(link_gbps, 2), link_gbps)


def line_rate_gbps(links: int, link_gbps: float) -> int:
    """Return the line rate of some links together, in one direction, GB/s, rounded down.

    Requests for a minimum bandwidth are compared with this rate. The rate is a whole number because device attributes
    are whole numbers, and annotations and CEL selectors must select the same GPUs.

    Args:
        links: The number of links.
        link_gbps: The bandwidth of one link as NCCL counts it, GB/s.
    """
    return int(links * line_gbps(link_gbps) + 1e-6)
