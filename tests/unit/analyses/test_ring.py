"""The ring: closed forms of the kernel, its spectrum and its fits; propositions 2 and 3."""

import numpy as np
import pytest
import torch

from tasklab.analyses import kernels as spectral
from tasklab.analyses import ring
from tests.helpers import refuses

FIRST = slice(0, 200)
SECOND = slice(200, 400)


@pytest.fixture(scope="module")
def a():
    return ring.angles(400)


@pytest.fixture(scope="module")
def whole(a):
    return ring.ring_kernel(a)


@pytest.fixture(scope="module")
def block(a):
    return ring.block_kernel(a)


def fourier_eigenvalues(kernel):
    """Return the eigenvalues of a symmetric circulant matrix divided by N, by frequency.

    Entry n belongs to exp(i n a) and tends to c_n for many points; entry N - n repeats it.
    """
    return np.fft.fft(kernel[0]).real / len(kernel)


def atoms_on_arc(points, highest):
    """Return the smallest singular value of 2 `highest` + 1 Fourier atoms restricted to D_1.

    It is above zero (proposition 3's condition): no combination of them is zero on the half ring.
    It falls quickly with their number. On the whole ring all singular values are 1.
    """
    a = ring.angles(points)[: points // 2]
    atoms = np.exp(1j * np.outer(a, np.arange(-highest, highest + 1))) / np.sqrt(points)
    return float(np.linalg.svd(atoms, compute_uv=False)[-1])


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


def test_kernel_is_circulant_and_fourier_atoms_are_its_eigenfunctions(a, whole):
    np.testing.assert_allclose(np.roll(whole, (3, 3), (0, 1)), whole, atol=1e-7)
    eigenvalues = fourier_eigenvalues(whole)
    for n in (0, 1, 2, 3, 8, 17):
        for atom in (np.cos(n * a), np.sin(n * a)):
            np.testing.assert_allclose(whole @ atom / 400, eigenvalues[n] * atom, atol=1e-7)


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


def test_fourier_atoms_are_independent_on_half_a_ring():
    """Proposition 3's condition, against the integrals of the atoms' products."""
    k = np.arange(-2, 3)
    with np.errstate(divide="ignore", invalid="ignore"):
        odd = 1j / (np.pi * (k[:, None] - k)) * ((k[:, None] - k) % 2)
    products = np.where(k[:, None] == k, 0.5, odd)
    smallest = np.linalg.eigvalsh(products)[0] ** 0.5
    assert smallest > 0.04
    np.testing.assert_allclose(atoms_on_arc(20_000, 2), smallest, rtol=1e-3)
    found = [atoms_on_arc(200, highest) for highest in range(5)]
    assert all(one > 0.001 for one in found) and sorted(found, reverse=True) == found
    np.testing.assert_allclose(found[0], 0.5**0.5)


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


def test_fit_interpolates_with_least_norm(whole, a):
    inside = np.arange(0, 200, 10)
    y = np.exp(np.sin(a[inside]))
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


def test_interference_is_the_error_of_the_sum(whole):
    found = ring.add_tasks(whole)
    for task, (mine, other) in enumerate([(FIRST, 1), (SECOND, 0)]):
        size = np.sqrt(np.mean(found.targets[mine] ** 2))
        rms = np.sqrt(np.mean(found.fits[other, mine] ** 2))
        np.testing.assert_allclose(found.added[task], rms / size, rtol=1e-9)


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


@pytest.mark.parametrize("points", [0, 2, 7])
def test_two_halves_need_points(points):
    refuses("even number of points", ring.angles, points)
