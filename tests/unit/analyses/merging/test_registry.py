"""Methods by name."""

import re

import pytest

from tasklab.analyses import merging
from tasklab.taskvector import TaskVector
from tests.helpers import refuses


def test_every_method_keeps_names_shapes_types_and_scales_with_alpha(cases):
    vectors = cases.vectors(3)
    images = {
        "diagonals": [{name: x.square() for name, x in v.items()} for v in vectors],
        "grams": [{n: v[n].T @ v[n] for n in cases.MATRICES if n != "proj"} for v in vectors],
    }
    images["readers"] = [lambda _, names, own=G: {n: own[n] for n in names if n in own}
                         for G in images["grams"]]  # fmt: skip
    for name, method in merging.METHODS.items():
        needed = {method.needs: images[method.needs]} if method.needs else {}
        needed |= {"ridge": 1e-3} if "ridge" in method.options else {}
        whole = merging.merge(name, vectors, **needed)
        half = merging.merge(name, vectors, alpha=0.5, **needed)
        assert {n: (x.shape, x.dtype) for n, x in whole.items()} == {
            n: (x.shape, x.dtype) for n, x in vectors[0].items()
        }, name
        cases.assert_close(half, whole / 2)
        single = [TaskVector({n: x.float() for n, x in v.items()}) for v in vectors]
        rough = merging.merge(name, single, **needed)
        assert all(x.dtype == single[0][n].dtype for n, x in rough.items()), name


def test_methods_have_sources_and_unknown_ones_a_nearest(cases):
    for name, method in merging.METHODS.items():
        assert re.fullmatch(r"\d{4}\.\d{5}", method.paper), name
        assert method.paper in (method.function.__doc__ or ""), name
        assert method.text and method.title and "alpha" in method.options, name
    vectors = cases.vectors(2)
    refuses("'tie': did you mean 'ties'", merging.merge, "tie", vectors)
    refuses("ties 'kep': did you mean 'keep'", merging.merge, "ties", vectors, kep=0.2)
    refuses("unknown method of merging 3", merging.merge, 3, vectors)


@pytest.mark.parametrize("name", ["tall_masks", "emr", "tsv_c", "wemoe", "adamerging"])
def test_what_is_no_merge_is_said_to_be_none(cases, name):
    refuses(rf"^{name} .*(no single model|test images)", merging.merge, name, cases.vectors(2))


def test_a_recommended_coefficient_follows_the_number_of_vectors():
    of = merging.METHODS["arithmetic"].recommended
    assert [of(n)["alpha"] for n in (1, 2, 4, 8)] == [0.75, 0.75, 0.445, 0.288]
    assert 0.445 < of(3)["alpha"] < 0.75 and 0.15 < of(16)["alpha"] < 0.2
    assert merging.METHODS["wudi_exact"].recommended(100)["alpha"] == 0.826  # rises: no trend
    of = merging.METHODS["lot"].recommended
    assert of(8) == of(6) == of(12) == {"alpha": 1.37}
    for count in (2, 13):
        refuses(rf"for {count} vectors \(recorded with 8\)", of, count)
    assert merging.METHODS["wudi"].recommended(2) == merging.METHODS["wudi_descent"].recommended(2)
