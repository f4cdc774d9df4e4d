"""The headline of a comparison's report."""

from types import SimpleNamespace

import pytest

from tasklab.book import contest


@pytest.mark.parametrize(
    ("best", "start", "told"),
    [
        (60.0, 50.0, "The merge to take: TIES"),
        (49.0, 50.0, "No merge is better than the pre-trained model; the best is TIES"),
        (None, None, "The merge to take: TIES"),  # chosen without labels
    ],
)
def test_a_merge_that_loses_is_not_recommended(best, start, told):
    entries = (SimpleNamespace(title="TIES", validation=x) for x in (best, start))
    found = SimpleNamespace(**dict(zip(("best", "start"), entries, strict=True)))
    assert contest._headline(found) == told
