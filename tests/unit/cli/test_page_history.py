"""What ``gputopo serve`` keeps of the last day."""

from __future__ import annotations

from dradriver.cli.page.history import STEP_S, History, Sample


def test_a_day_is_kept_and_no_more() -> None:
    history = History()
    for second in range(0, 2 * 86400, 60):
        history.note(Sample(second, free=second, allocated=0, waiting=0))
    assert len(history.samples) == 288
    assert {
        after.at_s - before.at_s for before, after in zip(history.samples, list(history.samples)[1:], strict=False)
    } == {STEP_S}
    assert history.samples[-1].at_s - history.samples[0].at_s == 86400 - STEP_S
