"""The k-th smallest of many numbers, against sorting them."""

import pytest
import torch

from tasklab.analyses.merging.masks import kth_smallest
from tests.helpers import refuses


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_it_is_what_sorting_finds(dtype):
    generator = torch.Generator().manual_seed(0)
    many = torch.randn(3000, generator=generator, dtype=torch.float64)
    numbers = (many * torch.logspace(-30, 30, 3000, dtype=torch.float64)).to(dtype)
    numbers[100:200] = numbers[0]  # ties
    numbers[200:203] = torch.tensor([0.0, -0.0, 0.0])
    expected = numbers.double().sort().values
    parts = [part.reshape(-1, 5).T for part in numbers.split(1000)]  # not contiguous
    for k in (0, 1, 99, 100, 1499, 1500, 1501, 2998, 2999):
        assert kth_smallest(lambda: iter(parts), k) == float(expected[k])


@pytest.mark.parametrize("k", [-1, 2])
def test_a_rank_that_is_not_there_is_refused(k):
    refuses(f"no number of rank {k} among 2", kth_smallest, lambda: [torch.ones(2)], k)
    refuses("among 0", kth_smallest, list, 0)
