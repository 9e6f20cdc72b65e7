"""Lines on long steps: before a step that says nothing itself, and while programs are built."""

import sys


def announce(step: str, usual_s: int) -> None:
    """Prints what begins now, and how long it usually takes on two cores."""
    print(f"{step} (about {usual_s} s)", flush=True)


def advance(step: str, elapsed_s: float, usual_s: int) -> None:
    """Prints how a step that lasts for minutes is getting on; on a terminal each line replaces the one before."""
    text = f"{step}: {elapsed_s:.0f} s of about {usual_s} s"
    print(text, end="\r" if sys.stdout.isatty() else "\n", flush=True)
