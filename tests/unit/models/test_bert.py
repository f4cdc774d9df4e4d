"""BERT as an encoder: transformers' values and gradients, padding, tangents, token ids."""

import copy
import logging

import pytest
import torch

from tasklab.analyses import kernels
from tasklab.models import bert, sentences
from tasklab.models.blocks import Layers
from tasklab.models.encoder import SentenceEncoder, math_attention
from tasklab.models.heads import Head
from tasklab.models.intercept import back, front, outputs
from tasklab.tasks.texts import decoded, encoded
from tasklab.tuning import kronecker, tangent
from tasklab.tuning.forward_mode import dual_numbers
from tasklab.tuning.methods import trainable
from tests import sentences as tiny
from tests.helpers import refuses


@pytest.fixture
def clip(tmp_path, monkeypatch):
    return tiny.tiny(tmp_path, monkeypatch)


@pytest.fixture
def ids(clip):
    ids = clip.encoder.preprocess(encoded(tiny.TEXTS))
    assert ids.shape == (5, 20) and (ids != 0).sum(1).max() == 19  # no more, and no fewer
    return ids[:, : int((ids != 0).sum(1).max())]


def theirs(model, ids):
    """Return transformers' states, averaged over each text's tokens."""
    mask = (ids != 0).to(torch.int64)
    states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def test_features_and_gradients_are_those_of_transformers(clip, ids):
    model = tiny.network()
    wanted = theirs(model, ids)
    direction = torch.randn_like(wanted)
    wanted.backward(direction)
    leaves = {name: x.clone().requires_grad_() for name, x in clip.encoder.params.items()}
    features = clip.encoder(leaves, ids)
    torch.testing.assert_close(features, wanted, atol=1e-5, rtol=1e-5)
    features.backward(direction)
    slopes = bert.from_transformers(
        {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in
         model.named_parameters()}
    )  # fmt: skip
    assert set(leaves) == set(slopes) - {"tokens", "positions", "norm_weight", "norm_bias"}
    for name, leaf in leaves.items():
        torch.testing.assert_close(leaf.grad, slopes[name], atol=1e-5, rtol=1e-5)


def test_linearized_values_and_gradients_are_those_of_torch_func(clip, ids):
    encoder = SentenceEncoder.of(copy.deepcopy(clip.encoder.module).double())
    params = encoder.params
    tau = {name: 0.1 * torch.randn_like(x) for name, x in params.items()}

    def plain(theta):
        return torch.func.functional_call(encoder.module, theta, (ids,))

    def loss(features):
        return features.sin().square().sum()

    leaves = {name: x.clone().requires_grad_() for name, x in tau.items()}
    with dual_numbers():  # without torch's warnings at its first derivative
        pass
    with math_attention():
        f0, jtau = torch.func.jvp(plain, (params,), (leaves,))
    wanted = loss(f0 + jtau)
    found = tangent.jvp(encoder, params, tau, ids)
    torch.testing.assert_close(found.f0, f0.detach(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found.jtau, jtau.detach(), atol=1e-6, rtol=1e-6)
    assert jtau.norm() > 0.1
    value, slopes = tangent.value_and_grad(encoder, params, tau, ids, loss)
    torch.testing.assert_close(value, wanted.detach())
    wanted = torch.autograd.grad(wanted, list(leaves.values()))
    for name, slope in zip(leaves, wanted, strict=True):
        torch.testing.assert_close(slopes[name], slope, atol=1e-6, rtol=1e-6)


def test_a_text_has_the_same_features_in_any_batch(clip, ids):
    encoder = clip.encoder
    together = encoder(encoder.params, ids)
    wide = torch.nn.functional.pad(ids, (0, 5))
    torch.testing.assert_close(encoder(encoder.params, wide), together)
    for row, text in enumerate(tiny.TEXTS):
        alone = encoder(encoder.params, encoder.preprocess(encoded([text])))
        torch.testing.assert_close(alone, together[row : row + 1], atol=1e-6, rtol=1e-5)


def test_blocks_give_zeros_as_padding_and_can_be_stitched(clip, ids):
    encoder = clip.encoder
    given = outputs(encoder, encoder.params, ids)
    assert len(encoder.blocks) == 3
    for name in encoder.blocks:
        assert given[name][ids == 0].count_nonzero() == 0
        assert given[name][ids != 0].count_nonzero() > 0
    for block in range(3):
        h = front(encoder, encoder.params, ids, block)
        features = back(encoder, encoder.params, ids, block, h)
        torch.testing.assert_close(features, given["features"])
    layers = Layers(encoder, ids)
    means = layers.parts(encoder.params, ids)
    last = given[encoder.blocks[-1]]
    torch.testing.assert_close(
        means[encoder.blocks[-1]], last.sum(1) / (ids != 0).sum(1, keepdim=True)
    )


def test_a_kernel_is_that_of_each_text_alone(clip, ids):
    encoder, head = clip.encoder, Head(torch.eye(16)[:2])
    found = kernels.gram(encoder.fixed, encoder.params, head, ids)
    rows = []
    for row in range(len(ids)):
        leaves = {name: x.clone().requires_grad_() for name, x in encoder.params.items()}
        score = encoder(leaves, ids[row : row + 1])[0, 1]
        slopes = torch.autograd.grad(score, list(leaves.values()))
        rows.append(torch.cat([x.flatten() for x in slopes]))
    rows = torch.stack(rows)
    torch.testing.assert_close(found[1], (rows @ rows.T).double(), atol=1e-4, rtol=1e-4)


def test_parts_without_padding_are_all_texts(clip, ids):
    parts = list(clip.encoder.without_padding(ids))
    assert sum(map(len, parts)) == len(ids) and all((part != 0).all() for part in parts)
    assert len({part.shape[1] for part in parts}) == len(parts) > 2


def test_curvature_reads_tokens_and_no_padding(clip):
    texts = encoded(tiny.TEXTS)
    found = kronecker.factors(clip.encoder, [texts], draws=None)
    singles = [kronecker.factors(clip.encoder, [texts[i : i + 1]], draws=None) for i in range(5)]
    lengths = (clip.encoder.preprocess(texts) != 0).sum(1).tolist()
    name, norm = "blocks.1.mlp.fc1.weight", "blocks.1.norm1.weight"
    rows = sum(n * one.inputs[name] for n, one in zip(lengths, singles, strict=True))
    torch.testing.assert_close(found.inputs[name], rows / sum(lengths))
    for table, key in (("outputs", name), ("blocks", norm)):
        mean = sum(getattr(one, table)[key] for one in singles) / 5
        torch.testing.assert_close(getattr(found, table)[key], mean, atol=1e-5, rtol=1e-4)


def test_methods_find_the_layers_of_every_block(clip):
    params = clip.encoder.params
    assert len(trainable(params, "attention", "minilm")) == 2 * 3
    assert len(trainable(params, "attention_bias", "minilm")) == 4 * 3
    assert len(trainable(params, "attention_mlp_bias", "minilm")) == 8 * 3
    assert all(name.startswith("blocks.") for name in params)


def test_texts_are_prompts_and_inputs_alike(clip):
    texts = ["a b", "c"]
    features = clip.encoder(clip.encoder.params, clip.encoder.preprocess(encoded(texts)))
    torch.testing.assert_close(clip.text(texts), features)
    assert clip.cosine and clip.logit_scale == 20


def test_long_texts_are_cut_and_told_of_once(clip, caplog):
    tokens = sentences.Tokenizer(tiny_file(clip), 6, "a model of this test")
    with caplog.at_level(logging.WARNING):
        ids = tokens(["abcdefgh", "abcd", "abcdefghi"])
    assert ids.shape == (3, 6) and ids[0, -1] == ids[1, -1] == tiny.WORDS.index("[SEP]")
    assert [r.getMessage() for r in caplog.records] == [
        "a model of this test reads the first 6 tokens of a text: longer texts are cut."
    ]


def tiny_file(clip):
    return sentences.find_file(tiny.entry(), sentences.TOKENIZER)


def test_empty_texts_and_other_checkpoints_are_refused(clip, tmp_path):
    refuses("empty text", clip.text, ["a", " "])
    refuses("text 1 is ''", encoded, ["a", ""])
    refuses("zero character", encoded, ["a\0b"])
    refuses("embeddings.word", bert.from_transformers, {"visual.proj": torch.ones(1)})
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    refuses("cannot be read", sentences.Tokenizer, file, 6, "x")


def test_bytes_are_texts():
    texts = ["a caf\u00e9", "\u6f22", "trailing dot."]
    x = encoded(texts)
    assert decoded(x) == texts and decoded(x[1:, :]) == texts[1:] and x.dtype == torch.uint8
