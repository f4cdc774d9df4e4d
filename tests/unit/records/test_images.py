"""Standard errors by the sampling of images, by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from tasklab.evidence.records import images


def of(metric, value, n, absolute=None, **more):
    rows = pd.DataFrame({"value": [value], "n": [n], **{k: [x] for k, x in more.items()}})
    whole = None if absolute is None else pd.DataFrame({"value": [absolute]})
    return float(images.standard_errors(rows, metric, whole).iloc[0])


@pytest.mark.parametrize(
    ("right", "n"), [(0, 6), (6, 6), (5, 6), (90, 100), (50, 100), (1000, 1000)]
)
def test_a_proportion_has_two_images_more_of_either_sort(right, n):
    p = (right + 2) / (n + 4)  # A. Agresti and B. Coull, The American Statistician 52, 1998
    assert of("absolute", 100 * right / n, n) == pytest.approx(100 * math.sqrt(p * (1 - p) / n))
    half = 100 * math.sqrt(2 * p * (1 - p) / n)  # two tasks of n images each
    assert of("xi_pair", 200 * right / n, n) == pytest.approx(half)


def test_errors_of_ratios_quartiles_and_unknown_values():
    top, base = (80 + 2) / (100 + 4), (88.888888 + 2) / (100 + 4)  # 80 of 100, 90 % of 88.9
    relative = top * (1 - top) / 100 / 0.8**2 + base * (1 - base) / 100 / 0.88888888**2
    found = of("normalised", 90.0, 100, absolute=80.0)
    assert found == pytest.approx(90 * math.sqrt(relative), rel=1e-5)
    assert of("distance", 0.3, 25, low=0.2, high=0.4) == pytest.approx(0.2 / 1.349 / 5)
    assert np.isnan(of("distance", 0.3, 25)) and of("distance", 0.3, 25, error=0.7) == 0.7
