"""The ring: closed forms of the kernel, its spectrum and its fits; propositions 2 and 3."""

import numpy as np
import pytest
import torch

from tasklab.analyses import kernels as spectral
from tasklab.analyses import ring

FIRST = slice(0, 200)
SECOND = slice(200, 400)


A = ring.angles(400)


@pytest.fixture(scope="module")
def whole():
    return ring.ring_kernel(A)


@pytest.fixture(scope="module")
def block():
    return ring.block_kernel(A)


def fourier_eigenvalues(kernel):
    """Return the eigenvalues of a symmetric circulant matrix divided by N, by frequency.

    Entry n belongs to exp(i n a) and tends to c_n for many points; entry N - n repeats it.
    """
    return np.fft.fft(kernel[0]).real / len(kernel)


def share_on(values):
    energy = values**2
    return energy[: len(values) // 2].sum(0) / energy.sum(0)


def test_kernels_have_their_closed_forms():
    # By quadrature over the direction of w: |w|² has mean 2, and is independent of it.
    turn = 2 * np.pi * (np.arange(20_000) + 0.5) / 20_000
    w = np.stack([np.cos(turn), np.sin(turn)])
    for angle in (0.0, 0.4, 1.7, 3.0, np.pi):
        both = np.array([[1, 0], [np.cos(angle), np.sin(angle)]]) @ w
        u = np.array(np.cos(angle))
        on = (both > 0).all(0).mean()
        np.testing.assert_allclose(ring.kappa0(u), 2 * on, atol=2e-4)
        relu = np.maximum(both, 0).prod(0).mean()
        np.testing.assert_allclose(ring.kappa1(u), 2 * 2 * relu, atol=1e-6)
        np.testing.assert_allclose(ring.ntk(u), 2 * np.cos(angle) * on + 4 * relu, atol=3e-4)
    a = np.linspace(0, np.pi, 50)
    expected = (2 * np.cos(a) * (np.pi - a) + np.sin(a)) / np.pi
    np.testing.assert_allclose(ring.ntk(np.cos(a)), expected, atol=1e-7)
    n = np.arange(12)
    with np.errstate(divide="ignore"):
        even = 2 / np.pi**2 * (n**2 + 3) / (n**2 - 1.0) ** 2
    expected = np.where(n == 1, 0.5, np.where(n % 2 == 0, even, 0))
    found = fourier_eigenvalues(ring.ring_kernel(ring.angles(2000)))
    np.testing.assert_allclose(found[:12], expected, atol=1e-6)
    np.testing.assert_allclose(found.sum(), 2)  # k(x, x)
    np.testing.assert_allclose(found[1:], found[:0:-1], atol=1e-9)


def test_wide_networks_have_this_kernel():
    """The empirical kernel misses it by about 1 / √width."""
    a = ring.angles(24)
    points = torch.from_numpy(np.stack([np.cos(a), np.sin(a)], 1))
    exact = ring.ring_kernel(a)
    missed = []
    for width in (100, 1600, 25_600):
        errors = []
        for seed in range(6):
            net = ring.network(width, seed)
            kernel = spectral.gram(net, net.params, net.head, points, chunk=24)[0]
            errors.append(np.sqrt(np.mean((kernel.numpy() - exact) ** 2)))
        missed.append(np.sqrt(np.mean(np.square(errors))) * np.sqrt(width))
    assert 1 < min(missed) and max(missed) < 1.6 * min(missed)
    assert missed[-1] / np.sqrt(25_600) < 0.03


def test_eigenfunctions_of_the_network_are_not_localized(whole):
    values = ring.eigenfunctions(whole, 8)
    np.testing.assert_allclose(np.mean(values**2, 0), 1)
    np.testing.assert_allclose(share_on(values), 0.5, atol=1e-6)
    kernels = torch.from_numpy(whole)[None, FIRST]
    found = spectral.localization(kernels, 200)
    np.testing.assert_allclose(found.share, 0.5, atol=1e-3)


def test_eigenfunctions_of_the_cut_kernel_are_localized(block):
    values = ring.eigenfunctions(block, 8)
    share = share_on(values)
    np.testing.assert_allclose(np.sort(share), [0] * 4 + [1] * 4, atol=1e-12)
    quotients = np.einsum("ni,nm,mi->i", values, block, values) / 400
    residual = block @ values - quotients * values
    assert np.abs(residual).max() < 1e-5
    found = spectral.localization(torch.from_numpy(block)[None, FIRST], 200)
    np.testing.assert_allclose(found.energy[0], [1] * 200 + [0] * 200, atol=1e-9)


def test_fit_interpolates_with_least_norm(whole):
    inside = np.arange(0, 200, 10)
    y = np.exp(np.sin(A[inside]))
    found = ring.fit(whole, inside, y)
    np.testing.assert_allclose(found[inside], y)
    # Orthogonal in the kernel's norm to what is zero at the data: beta lives on the data only
    beta = np.linalg.lstsq(whole[:, inside], found, rcond=None)[0]
    np.testing.assert_allclose(whole[:, inside] @ beta, found, atol=1e-9)


def test_sum_of_tasks_fails_with_the_network_by_the_closed_form():
    """Errors fall as 1 / N towards the continuous ring."""
    root = np.sqrt(3)
    b = -(3 * np.pi / 7) / (1 + np.pi / np.tanh(np.pi * root / 2) / root)
    gaps = []
    for points in (200, 800):
        a = ring.angles(points)
        found = ring.add_tasks(ring.ring_kernel(a))
        half = points // 2
        first, second = found.fits
        beyond = np.cos(2 * a) + 2 * b * np.sin(a)
        away = np.abs(first - beyond)[half:].max(), np.abs(second - np.sin(2 * a))[:half].max()
        length = np.sqrt(1 + (2 * b) ** 2 + 16 * b / (3 * np.pi))
        gaps.append((*away, abs(found.added[0] - 1), abs(found.added[1] - length)))
        np.testing.assert_allclose(found.alone, 0, atol=1e-9)
    gaps = np.array(gaps)
    assert (gaps[1] < 0.012).all() and (gaps[1] < 0.35 * gaps[0]).all()


def test_sum_of_tasks_is_exact_with_the_cut_kernel(block):
    found = ring.add_tasks(block)
    assert (found.fits[0, SECOND] == 0).all() and (found.fits[1, FIRST] == 0).all()
    np.testing.assert_allclose(found.fits.sum(0), found.targets, atol=1e-9)
    np.testing.assert_allclose(found.added, 0, atol=1e-9)


def test_table_has_what_the_figure_draws():
    df = ring.table(points=20, count=3)
    assert list(df.columns) == ["kernel", "metric", "subset", "x", "value"]
    counts = df.groupby(["kernel", "metric"]).size()
    for kernel in ring.KERNELS:
        assert counts[kernel].to_dict() == {
            "added": 2, "alone": 2, "eigenfunction": 60, "fit": 40, "sum": 20, "target": 20,
        }  # fmt: skip
    added = df[(df["metric"] == "added") & (df["kernel"] == "ring")]["value"]
    assert (added > 60).all()
