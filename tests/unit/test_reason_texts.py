"""Reasons and refusals as sentences: made in one place from values."""

from __future__ import annotations

from dradriver.allocator.request import NoPlaceError
from dradriver.reason import Cause, Reason, sentences


def test_sentences_end_with_one_full_stop_and_empty_ones_are_left_out() -> None:
    assert sentences("One", "", "Two.", "Three?") == "One. Two. Three?"
    assert sentences("", "") == ""


def test_a_reason_gets_a_further_sentence_in_both_of_its_texts() -> None:
    reason = Reason(Cause.GPUS, "Full: 3 of 8.", "Full.").add("Wait")
    assert (reason.text, reason.stable, reason.cause) == ("Full: 3 of 8. Wait.", "Full. Wait.", Cause.GPUS)
    assert Reason(Cause.GPUS, "Full.").add("", Cause.CAP) == Reason(Cause.CAP, "Full.")


def test_a_refusal_has_the_nearest_possible_thing_at_its_end_and_as_a_value() -> None:
    error = NoPlaceError("no free set", request="8 GPUs", nearest="Most: 7 on a", cause=Cause.GPUS)
    more = error.more("Nodes left out: tainted", "")
    assert str(more) == "No place for 8 GPUs: no free set. Nodes left out: tainted. Most: 7 on a."
    assert (more.nearest, more.cause) == ("Most: 7 on a.", Cause.GPUS)
    assert more.why == Reason(
        Cause.GPUS,
        "Waiting for 8 GPUs: no free set. Nodes left out: tainted. Most: 7 on a.",
        "Waiting for 8 GPUs: no free set. Nodes left out: tainted.",
    )
    assert str(more.without_figures) == more.stable
    assert NoPlaceError("Gone").why == Reason(Cause.POD, "Gone.")
