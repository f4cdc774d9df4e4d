"""The headline of a comparison's report."""

import pytest

from tasklab.bench.contest import Contest, Entry
from tasklab.book import contest


@pytest.mark.parametrize(
    ("best", "start", "gains"),
    [
        ({"validation": 60.0}, {"validation": 50.0}, True),
        ({"validation": 50.0}, {"validation": 50.0}, False),
        ({"validation": 49.0}, {"validation": 50.0}, False),
        ({"loss": 0.7}, {}, True),  # chosen without labels
        ({"loss": 1.0}, {}, False),
    ],
)
def test_a_merge_that_does_not_gain_is_not_recommended(best, start, gains):
    entries = [Entry(name="ties", title="TIES", answers={}, **one) for one in (best, start)]
    found = Contest(start=entries[1], alone={}, merges=entries[:1], pairs=[], alpha=0.3)
    headline = contest._headline(found)
    assert found.gains == gains and "TIES" in headline
    assert ("The merge to take" in headline) == gains
    assert ("Keep the single models" in headline) != gains
