"""Figures can be read: sizes of letters, nothing cut off, nothing over another."""

import pandas as pd
import pytest

from tasklab.analyses import ring
from tasklab.evidence.figures import curvature, kernels, layers
from tests.marks import readable
from tests.unit.figures import test_curvature, test_disentanglement, test_editing, test_layers
from tests.unit.figures.test_kernels import energies

DRAWN = test_disentanglement.DRAWN
aligned, cosines = test_layers.aligned, test_layers.cosines  # fixtures
interference = test_layers.interference
pairs, fits, sums = test_curvature.pairs, test_curvature.fits, test_curvature.sums


@pytest.mark.parametrize("draw", test_editing.FROM_RECORDS, ids=lambda f: f.__name__)
def test_figures_of_records(draw):
    figure = draw(test_editing.synthetic(3))
    readable(figure)
    labels = [a.get_xlabel() + a.get_ylabel() for a in figure.axes]
    assert any("%" in s or "ms" in s for s in labels)
    assert len(draw(test_editing.synthetic(1)).axes) == len(figure.axes)  # one seed has no spread


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_maps_and_coefficients(draw):
    readable(draw())


def test_kernels_layers_and_curvature(cosines, aligned, interference, pairs, fits, sums):
    readable(kernels.ring(ring.table(60)), least=8.5, apart=False)
    readable(kernels.localization(energies()), least=8.5, apart=False)
    further = cosines[cosines["method"] == "nonlinear"].assign(method="linearized")
    three = pd.concat([cosines, further]).replace({"Signs": "HouseNumbers"})  # a long name
    for figure in (
        layers.cosine_matrices(cosines),
        layers.cosine_matrices(three),
        layers.cosine_by_block(cosines),
        layers.layer_alignment(aligned),
        layers.alignment_against_interference(interference),
    ):
        readable(figure, least=8)
    for figure in (
        curvature.gap_against_bound(pairs, fits),
        curvature.sum_form(sums),
        curvature.transitivity(*test_curvature.triples_of(test_curvature.METHODS), 0.05),
        curvature.transitivity(*test_curvature.triples_of(["nonlinear"])),
    ):
        readable(figure, least=8, apart=False)  # ticks of logarithms touch
