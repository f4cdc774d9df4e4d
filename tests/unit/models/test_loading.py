"""The registry, encoders as functions of parameters, preprocessing, and checkpoints that misfit."""

import dataclasses
import gc
import hashlib
import json
import re
import shutil

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tasklab import mini
from tasklab.errors import TasklabError
from tasklab.models import loading, weights, zoo
from tests.helpers import refuses


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = mini.build()
    path = tmp_path_factory.mktemp("weights") / "mini.safetensors"
    save_file({name: tensor.half() for name, tensor in model.state_dict().items()}, path)
    return path


@pytest.fixture(scope="module")
def clip(checkpoint):
    return loading.load("mini", weights=checkpoint)


def test_names_outlines_and_shortened_models(monkeypatch):
    assert tuple(loading.REGISTRY) == zoo.MODELS
    refuses("did you mean 'vitb32'", loading.load, "vitb23")
    refuses("init", loading.load, "mini", init="pretraned")
    random = loading.outline("mini_xs", init="random").encoder
    assert random.weights_hash == loading.load("mini_xs", init="random").encoder.weights_hash
    assert random.weights_hash != loading.outline("mini_xs").encoder.weights_hash
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(8)))
    caught = refuses(r"16 missing: 0\.weight, .*", weights.fit, model, {}, "empty.safetensors")
    assert "7.bias" not in caught
    sizes, build = [], loading.build
    monkeypatch.setattr(loading, "build", lambda *a: sizes.append(build(*a)) or sizes[-1])
    clip = loading.load("vitb32", init="random", blocks=1)
    assert sum(x.numel() for x in sizes[0].parameters()) < 5e7  # others are not drawn first
    assert clip.encoder.blocks == ("transformer.resblocks.0",)
    less = loading.load("vitb32", init="random", blocks=1, patches=2).encoder
    assert (less.image_size, less(less.params, less.blank).shape) == (64, (1, 512))
    image = torch.zeros(1, 3, 224, 224)
    assert clip.encoder(clip.encoder.params, image).shape == clip.text(["a cat"]).shape == (1, 512)


@pytest.mark.parametrize("name", zoo.MODELS)
def test_an_entry_of_the_table_is_complete(name):
    entry = zoo.spec(name)
    assert entry.tower.parameters > 0 and entry.blocks > 0 and entry.source
    assert all(zoo.family(name)[role] == name for role in entry.roles)
    apart = entry.extra or entry.world != "mini" or name in zoo.replicas("mini")
    assert bool(entry.roles) != apart
    assert (
        zoo.closed(name) == (name in zoo.CLOSED_MODELS) == (entry.kind == "vit" or not entry.text)
    )
    assert bool(zoo.text_suite(name)) == entry.reads_text
    if entry.shipped:
        assert entry.rates["nonlinear"] > 0 and not entry.repository
        if not entry.extra:
            assert mini.weights_path(entry.shipped_as).is_file()
            assert mini.card(entry.shipped_as)["sha256"]
    else:
        assert entry.repository and entry.published and not entry.shares
        assert bool(entry.rates) == entry.small
    if entry.revision is not None:
        assert re.fullmatch("[0-9a-f]{40}", entry.revision)


def test_the_checkpoint_is_loaded_frozen_in_float32_with_its_blocks_in_order(clip, checkpoint):
    encoder = clip.encoder
    assert encoder.blocks == tuple(f"transformer.resblocks.{i}" for i in range(6))
    assert not encoder.module.training
    for parameter in encoder.params.values():
        assert parameter.dtype == torch.float32 and not parameter.requires_grad
    stored = weights_of(checkpoint)
    for name, parameter in clip.encoder.params.items():
        assert torch.equal(parameter, stored[f"visual.{name}"].float())


def weights_of(path):
    from tasklab.storage.store import read_tensors

    return read_tensors(path)


def test_calling_with_other_parameters_is_another_model_and_changes_none(clip):
    encoder, x = clip.encoder, torch.randn(2, 3, 32, 32)
    before = encoder.weights_hash
    moved = {name: p + 0.01 for name, p in encoder.params.items()}
    other = encoder(moved, x)
    expected = encoder.module(x)
    torch.testing.assert_close(encoder(encoder.params, x), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(encoder({}, x), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(other, expected, atol=1e-3)
    fresh = dataclasses.replace(encoder)
    assert fresh.weights_hash == before
    with torch.no_grad():
        wrapped = mini.build().visual.eval()
        wrapped.load_state_dict(moved)
        torch.testing.assert_close(other, wrapped(x), rtol=1e-4, atol=1e-5)


def test_the_hash_tells_parameters_apart_and_texts_are_on_their_own(clip):
    encoder = clip.encoder
    changed = {name: p.clone() for name, p in encoder.params.items()}
    changed["proj"][0, 0] += 1e-3
    assert dataclasses.replace(encoder, params=changed).weights_hash != encoder.weights_hash
    order = dict(reversed(encoder.params.items()))
    assert dataclasses.replace(encoder, params=order).weights_hash == encoder.weights_hash
    texts = [f"{n} circles" for n in range(300)]  # more than one batch
    features = clip.text(texts)
    assert features.shape == (300, 128) and not features.requires_grad
    torch.testing.assert_close(features[299:], clip.text(texts[299:]), rtol=1e-4, atol=1e-5)
    assert len(repr(clip)) < 1000


def test_random_init_draws_only_the_image_encoder_and_only_from_its_seed(checkpoint, monkeypatch):
    sha256 = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    monkeypatch.setattr(mini, "weights_path", lambda name: checkpoint)
    monkeypatch.setattr(mini, "card", lambda name: {"sha256": sha256})
    trained = loading.load("mini")
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = loading.load("mini", init="random", seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    second = loading.load("mini", init="random", seed=3)
    third = loading.load("mini", init="random", seed=4)
    assert first.encoder.weights_hash == second.encoder.weights_hash
    hashes = {clip.encoder.weights_hash for clip in (trained, first, third)}
    assert len(hashes) == 3
    texts = ["a red circle", "two"]
    assert torch.equal(first.text(texts), trained.text(texts))
    assert first.logit_scale == trained.logit_scale
    refuses("takes no weights", loading.load, "mini", init="random", weights=checkpoint)


def test_preprocessing_normalises_channels(clip):
    encoder = clip.encoder
    x = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    before = x.clone()
    expected = x.float() / 255
    for channel in range(3):
        expected[:, channel] -= encoder.mean[channel]
        expected[:, channel] /= encoder.std[channel]
    torch.testing.assert_close(encoder.preprocess(x), expected)
    torch.testing.assert_close(encoder.preprocess(x), mini.clip.normalise(x))
    assert torch.equal(x, before)


@pytest.mark.parametrize("shape", [(20, 20), (64, 48), (33, 90)])
def test_preprocessing_resizes_the_shorter_side_and_cuts_the_centre(clip, shape):
    grey = torch.full((1, 3, *shape), 127, dtype=torch.uint8)
    out = clip.encoder.preprocess(grey)
    assert out.shape == (1, 3, 32, 32)
    torch.testing.assert_close(out, clip.encoder.preprocess(grey[..., :1, :1].expand(1, 3, 32, 32)))


def test_wrong_keys_and_files_are_named(tmp_path, checkpoint):
    tensors = weights_of(checkpoint)
    tensors["visual.projection"] = tensors.pop("visual.proj")
    tensors["logit_scale"] = torch.ones(2)
    path = tmp_path / "renamed.safetensors"
    save_file(tensors, path)
    message = refuses("", loading.load, "mini", weights=path)
    for part in (
        "1 missing: visual.proj;",
        "1 unexpected: visual.projection",
        "1 of another shape: logit_scale",
        str(path),
    ):
        assert part in message
    refuses("no weights file", loading.load, "mini", weights=tmp_path / "absent.safetensors")
    half = tmp_path / "half.safetensors"
    half.write_bytes(checkpoint.read_bytes()[:2000])
    refuses("half.safetensors", loading.load, "mini", weights=half)


def test_shipped_weights_that_changed_are_refused(tmp_path, monkeypatch):
    whole = mini.weights_path("mini_xs")
    data = bytearray(whole.read_bytes())
    data[-3] ^= 4
    damaged = tmp_path / "mini_xs.safetensors"
    damaged.write_bytes(data)
    shutil.copy(whole.with_suffix(".json"), tmp_path)
    loading.load("mini_xs")
    monkeypatch.setattr(mini, "weights_path", lambda name: damaged)
    refuses(r"mini_xs.safetensors are not what they were.*Reinst", loading.load, "mini_xs")


@pytest.mark.parametrize("cached", [False, True])
def test_fetched_weights_are_compared_with_what_they_first_were(tmp_path, cached):
    def placed(commit, text):
        folder = tmp_path / "snapshots" / commit if cached else tmp_path
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "model.safetensors"
        file.write_text(text)
        return file

    weights.remember(placed("a" * 40, "numbers"), "someone/model")
    weights.remember(placed("b" * 40, "numbers"), "someone/model")  # the same file
    (note,) = tmp_path.glob("*.tasklab.json")
    first = json.loads(note.read_text())
    assert first["sha256"] == hashlib.sha256(b"numbers").hexdigest()
    assert first["commit"] == ("a" * 40 if cached else "")
    with pytest.raises(TasklabError, match="are not those that were first loaded from someone/mod"):
        weights.remember(placed("c" * 40, "others"), "someone/model")
    note.write_text("{}")
    refuses("is damaged", weights.remember, placed("a" * 40, "numbers"), "someone/model")
    note.unlink()
    weights.remember(placed("c" * 40, "others"), "someone/model")


def test_a_model_is_loaded_once_while_somebody_has_it(monkeypatch):
    made, usual = [], loading.load
    monkeypatch.setattr(loading, "load", lambda *a, **more: made.append(a) or usual(*a, **more))
    one = loading.shared("mini_few", init="random")
    assert loading.shared("mini_few", init="random") is one
    assert loading.shared("mini_few") is not one and len(made) == 2
    del one
    gc.collect()
    loading.shared("mini_few", init="random")
    assert len(made) == 3


@pytest.mark.parametrize("name", ["mini", "mini_convnext", "mini_sup_few", "mini_clip_large"])
def test_an_outline_has_the_identity_of_the_model(name):
    known, whole = loading.outline(name).encoder, loading.load(name).encoder
    assert known.params.keys() == whole.params.keys()
    assert (known.name, known.init, known.device) == (whole.name, whole.init, whole.device)
    assert known.weights_hash == whole.weights_hash
    assert known.image_size == whole.image_size  # of which keys tell where images are enlarged


def test_a_rehearsal_takes_the_first_of_equal_blocks_and_nothing_else():
    def block(first=3):
        return nn.Sequential(nn.Linear(first, 3), nn.GELU(), nn.Linear(3, 3))

    net = nn.ModuleDict({
        "blocks": nn.Sequential(*(block() for _ in range(6))),
        "stage": nn.ModuleList([block(5), *(block() for _ in range(4))]),  # of T5 and ResNets
        "stages": nn.ModuleList([nn.Linear(3, n) for n in (3, 4, 5, 6)]),
    })  # fmt: skip
    first = net["blocks"][1][2].weight
    short = loading._shortened(net, 2)
    assert [len(short[name]) for name in net] == [2, 2, 4]
    assert short["blocks"][1][2].weight is first and len(short["blocks"][0]) == 3
    assert short["stage"][0][0].in_features == 5


def test_missing_weights_of_the_package_are_one_sentence(tmp_path, monkeypatch):
    from tasklab.mini import shipped

    for file in shipped.FOLDER.glob("mini_xs.json"):
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    refuses(r"mini_xs\.safetensors are missing: reinstall", loading.locate, "mini_xs")
