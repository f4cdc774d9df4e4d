"""Vectors side by side: what is refused, and what counts as a matrix."""

import pytest
import torch

from tasklab.analyses import merging
from tasklab.analyses.merging.vectors import by_matrix, is_matrix, listed
from tasklab.errors import TasklabError
from tasklab.models import loading
from tasklab.taskvector import Base, TaskVector
from tests.helpers import refuses


def test_matrices_are_what_layers_multiply_with():
    params = loading.load("mini").encoder.params
    matrices = {name for name, x in params.items() if is_matrix(name, x)}
    block = ("attn.in_proj_weight", "attn.out_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    expected = {f"transformer.resblocks.{i}.{name}" for i in range(6) for name in block}
    assert matrices == expected | {"proj"}
    for name in ("shared.weight", "token_embedding.weight", "x.relative_attention_bias.weight"):
        assert not is_matrix(name, torch.ones(3, 2))
    assert is_matrix("w", torch.ones(1, 1)) and not is_matrix("w", torch.ones(0, 2))


def test_rules_see_outputs_by_inputs_and_the_rest_is_averaged(cases):
    seen = {}

    def rule(name, matrices):
        seen[name] = tuple(matrices[0].shape)
        return matrices[0]

    one, two = cases.vectors(2)
    merged = by_matrix([one, two], rule, 2)
    assert seen == {name: cases.SHAPES[name] for name in cases.MATRICES} | {"proj": (8, 6)}
    for name in cases.SHAPES:
        expected = one[name] if name in cases.MATRICES else (one[name] + two[name]) / 2
        torch.testing.assert_close(merged[name], 2 * expected)


def test_nothing_given_is_changed_and_half_is_merged_in_single_precision(cases):
    vectors = cases.vectors(3)
    for name, method in merging.METHODS.items():
        if not method.needs:
            merging.merge(name, vectors)
            assert all(v == cases.vector(i) for i, v in enumerate(vectors)), name
    # Numbers so small that their product underflows in half precision.
    half = [TaskVector({"w": (1e-4 * torch.rand(6, 5)).half()}) for _ in range(2)]
    merged = merging.pcb(half)
    assert merged["w"].dtype == torch.float32 and merged["w"].isfinite().all()
    assert merged == merging.pcb([TaskVector({"w": v["w"].float()}) for v in half])


def test_what_is_no_list_of_vectors_of_one_model_is_refused(cases):
    whole = cases.vector(0)
    wide = TaskVector({**whole, "proj": torch.ones(6, 9)})
    with pytest.raises(TasklabError, match="'b' has stem, which 'a' lacks"):
        listed({"a": whole, "b": TaskVector({"stem": torch.ones(2)})})
    refuses(r"proj has shape \(6, 8\) in task vector 1 and \(6, 9\)", listed, [whole, wide])
    vector = cases.vector(0)
    refuses("1 task vector .* 2", listed, [vector], 2)
    refuses("0 task vectors", listed, [])
    assert listed([vector]) == [vector]
    refuses("list .* not TaskVector", listed, vector)
    refuses("2 .* dict", lambda: listed([vector, dict(vector)]))
    refuses("have no parameters", lambda: listed([TaskVector({}), TaskVector({})]))
    base = Base("mini", "pretrained", "a" * 64)
    one, two = (vector.starting_from(base) for vector in cases.vectors(2))
    assert merging.merge("ties", [one, two]).base == base
    assert merging.merge("ties", [one, cases.vector(1)]).base is None
    with pytest.raises(TasklabError, match=r"'a' starts from mini .* and 'b' from mini_s "):
        other = two.starting_from(Base("mini_s", "pretrained", "b" * 64))
        listed({"a": one, "b": other, "c": vector.starting_from(Base("mini", "probed", "c" * 64))})


def test_a_parameter_that_a_vector_does_not_name_is_0_in_it(cases):
    """An attention-only run beside full ones: every merge takes what is absent as unchanged."""
    one, two = cases.vector(0), cases.vector(1)
    attention = TaskVector({n: x for n, x in cases.vector(2).items() if ".attn." in n})
    zeros = {n: torch.zeros_like(x) for n, x in one.items()}
    filled = TaskVector({**zeros, **attention})
    assert merging.merge("arithmetic", [one, attention]) == one + attention
    assert merging.merge("average", [attention, one]) == (one + attention) / 2
    for name, method in merging.METHODS.items():
        if not method.needs:
            found = merging.merge(name, [one, attention, two])
            assert found == merging.merge(name, [one, filled, two]), name
            assert all(x.isfinite().all() for x in found.values()), name
