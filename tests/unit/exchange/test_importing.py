"""Published layouts under our names, with their library's features; imported vectors."""

import copy
import functools
import hashlib
import io
import json
import os
import re
import sys
import time
from pathlib import Path
from unittest import mock

import huggingface_hub
import open_clip
import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from tasklab.__main__ import main
from tasklab.errors import TasklabError
from tasklab.exchange import exporting, importing, layouts, networks, places, reading
from tasklab.models import loading, weights, zoo
from tasklab.storage import fetching
from tasklab.storage.pickles import Inert
from tasklab.taskvector import TaskVector
from tests.helpers import flip, refuses

WIDTH, LAYERS, HEADS, EMBED, IMAGE, PATCH = 64, 2, 2, 16, 32, 8
X = torch.randn(3, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(0))


# The papers' classes.
class ImageEncoder(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.train_preprocess = [len, re.compile("x"), torch.float16]

    def forward(self, x):
        return self.model.visual(x)


class ImageClassifier(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.image_encoder = encoder
        self.classification_head = nn.Linear(EMBED, 7)


class LinearizedImageEncoder(nn.Module):
    def __init__(self, model, start):
        super().__init__()
        self.model = nn.Module()
        self.model.params, self.model.params0 = (
            nn.ParameterList([p.detach().clone() for p in one.parameters()])
            for one in (model, start)
        )


def save(thing, path, **options):
    torch.save(thing, path, **options)
    return path


CONFIG = {
    "embed_dim": EMBED,
    "vision_cfg": {
        "layers": LAYERS, "width": WIDTH, "head_width": WIDTH // HEADS, "image_size": IMAGE,
        "patch_size": PATCH,
    },
    "text_cfg": {"context_length": 5, "vocab_size": 20, "width": 8, "heads": 1, "layers": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the weights of both tiny models."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(3)
    built = open_clip.model.CLIP(**CONFIG, quick_gelu=True)
    for name in ("tiny", "tiny_gelu"):
        save_file(built.state_dict(), folder / f"{name}.safetensors")
    return folder


@pytest.fixture(autouse=True)
def tiny(monkeypatch, folder):
    for kept in (reading.shapes, reading.text_shapes):  # by a name that other tests use too
        kept.cache_clear()
    for name, quick in (("tiny", True), ("tiny_gelu", False)):
        spec = zoo.Spec(
            name=name, arch=name, pretrained="test", source="a test", blocks=LAYERS,
            block=r"transformer\.resblocks\.\d+", repository="nobody/nothing",
        )  # fmt: skip
        monkeypatch.setitem(zoo.REGISTRY, name, spec)
        monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, name, CONFIG | {"quick_gelu": quick})
        about = {"test": {"mean": (0.5,) * 3, "std": (0.3,) * 3}}
        monkeypatch.setitem(open_clip.pretrained._PRETRAINED, name, about)
    monkeypatch.setenv(weights.FOLDER, str(folder))
    monkeypatch.setattr(fetching, "unreachable", lambda *_: "no network in tests")


@functools.cache
def encoder_of(model="tiny"):
    return loading.load(model).encoder


def theta0():
    return encoder_of().params


def shaken(model, size):
    """Add noise: initial biases are 0 and norms 1, which would hide a swap."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn_like(parameter)
    return model


def new_encoder(seed, quick=True):
    """Return an encoder as the papers keep it: without the text tower's blocks."""
    torch.manual_seed(seed)
    clip = open_clip.model.CLIP(**CONFIG, quick_gelu=quick)
    del clip.transformer
    return shaken(ImageEncoder(clip).eval(), 0.05)


def old_encoder(seed, quick=True):
    """In open_clip 2.0 a block made its attention first, then the normalisation."""
    encoder = new_encoder(seed, quick)
    for block in encoder.model.visual.transformer.resblocks:
        block._modules = {
            name: block._modules[name] for name in ("attn", "ln_1", "mlp")
        } | block._modules
    return encoder


def tuned(encoder, seed=9):
    torch.manual_seed(seed)
    return shaken(copy.deepcopy(encoder), 0.01)


@torch.no_grad()
def features(theta, model="tiny"):
    return encoder_of(model)(theta, X)


def same_features(theta, own, model="tiny"):
    with torch.no_grad():
        torch.testing.assert_close(features(theta, model), own(X), rtol=1e-5, atol=1e-5)


def saved(folder, state, **about):
    save_file(state, folder / "x.safetensors", **about)
    return folder / "x.safetensors"


def refused(told, state, folder, **about):
    """Check that tensors are refused; return the sentence, which names the file."""
    path = saved(folder, state, **about)
    text = refuses(told, importing.vector_of if about else importing.read, path, "tiny")
    assert str(path) in text and text.isprintable() and len(text) < 1500
    return text


# Layouts.
def hub_model(act="quick_gelu", heads=HEADS):
    config = transformers.CLIPVisionConfig(
        hidden_size=WIDTH, intermediate_size=4 * WIDTH, projection_dim=EMBED, hidden_act=act,
        num_hidden_layers=LAYERS, num_attention_heads=heads, image_size=IMAGE, patch_size=PATCH,
    )  # fmt: skip
    torch.manual_seed(5)
    return shaken(transformers.CLIPVisionModelWithProjection(config).eval(), 0.05)


@pytest.mark.parametrize(("act", "model"), [("quick_gelu", "tiny"), ("gelu", "tiny_gelu")])
def test_transformers_features_are_ours(tmp_path, act, model, monkeypatch):
    """In a folder, and in the hub's cache."""
    own = hub_model(act)
    own.save_pretrained(tmp_path / "hub")

    def cached(_, name, **_more):
        file = tmp_path / "hub" / name
        return str(file) if file.is_file() else None

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
    for where in (tmp_path / "hub", "owner/model"):
        theta = importing.read(where, model)
        assert list(theta) == [name for name, _ in encoder_of(model).module.named_parameters()]
        same_features(theta, lambda x: own(x).image_embeds, model)


def published(own):
    state = {name: x for name, x in own.state_dict().items() if "visual_projection" not in name}
    state = {f"vision_model.{n.removeprefix('vision_model.')}": x for n, x in state.items()}
    count = len(state["vision_model.embeddings.position_embedding.weight"])
    return state | {"vision_model.embeddings.position_ids": torch.arange(count)[None]}


LARGE = {  # of openai/clip-vit-*, as their config.json gives them
    "vitb32": {"hidden_size": 768, "intermediate_size": 3072, "patch_size": 32},
    "vitb16": {"hidden_size": 768, "intermediate_size": 3072, "patch_size": 16},
    "vitl14": {
        "hidden_size": 1024, "intermediate_size": 4096, "patch_size": 14, "projection_dim": 768,
        "num_hidden_layers": 24, "num_attention_heads": 16,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_names_and_shapes_of_the_full_sizes_are_complete(name):
    """In every layout, without memory: no weight is drawn."""
    own = reading.shapes(name)
    assert len(own) == (296 if name == "vitl14" else 152)
    with torch.device("meta"):
        config = transformers.CLIPVisionConfig(image_size=224, **LARGE[name])
        hub = transformers.CLIPVisionModelWithProjection(config)
        clip = open_clip.model.CLIP(**open_clip.get_model_config(loading.spec(name).arch))
    del clip.transformer
    encoder, projection = ImageEncoder(clip), hub.visual_projection.weight
    params = {f"model.params.{i}": p for i, p in enumerate(encoder.parameters())}
    lists = params | {n.replace("params", "params0"): p for n, p in params.items()}
    whole = published(hub) | {"visual_projection.weight": projection}
    for state in (whole, encoder.state_dict(), clip.visual.state_dict(), lists):
        found = layouts.recognise(state, own)
        for theta in (found.theta, found.theta0) if found.theta0 else (found.theta,):
            assert {n: x.shape for n, x in theta.items()} == own
    assert own.keys() - layouts.recognise(published(hub), own).theta.keys() == {"proj"}


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_a_vision_model_without_projection_gets_the_pretrained_one(tmp_path, file):
    own, path, proj = hub_model(), tmp_path / file, theta0()["proj"]
    (save_file if file.endswith("safetensors") else torch.save)(published(own), path)
    found = reading.inspect(path, "tiny")
    assert any("no projection" in note for note in found.notes)
    assert torch.equal(found.theta["proj"], proj)
    same_features(found.theta, lambda x: own.vision_model(x).pooler_output @ proj)
    vector = importing.vector_of(path, "tiny")
    assert not vector["proj"].any() and vector["conv1.weight"].any()


def test_a_whole_clip_of_transformers(tmp_path):
    own = hub_model()
    state = published(own) | {"visual_projection.weight": own.visual_projection.weight.detach()}
    state |= {"logit_scale": torch.ones(()), "text_model.embeddings.token_embedding.weight": X}
    found = reading.inspect(saved(tmp_path, state), "tiny")
    assert "2 tensors of other parts" in " ".join(found.notes)
    same_features(found.theta, lambda x: own(x).image_embeds)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "inside", ["encoder", "classifier", "clip", "tower", "half", "new", "state", "training"]
)
def test_pickled_modules_and_states(tmp_path, inside, zipped):
    encoder = (new_encoder if inside == "new" else old_encoder)(1)
    state = encoder.model.state_dict()
    wrapped = {f"module.{name}": x for name, x in state.items()}
    thing = {
        "classifier": ImageClassifier(encoder), "clip": encoder.model,
        "tower": encoder.model.visual, "half": copy.deepcopy(encoder).half(), "state": state,
        "training": {"epoch": 3, "name": "x", "state_dict": wrapped, "optimizer": {}},
    }.get(inside, encoder)  # fmt: skip
    path = save(thing, tmp_path / "finetuned.pt", _use_new_zipfile_serialization=zipped)
    theta = importing.read(path, "tiny")
    if inside == "half":
        for name, tensor in encoder.model.visual.state_dict().items():
            assert torch.equal(theta[name], tensor.half().float())
    else:
        same_features(theta, encoder)


# Linearized encoders.
def list_file(model, start, path, *, as_module=False):
    linear = LinearizedImageEncoder(model, start)
    if as_module:
        return save(linear, path)
    return save({**linear.state_dict(), "model_name": "ViT-B-32"}, path)


@pytest.mark.parametrize("as_module", [True, False])
@pytest.mark.parametrize("make", [old_encoder, new_encoder])
def test_linearized_encoders_of_the_papers(tmp_path, make, as_module):
    start = make(1)
    encoder = tuned(start)
    base = save(start, tmp_path / "zeroshot.pt")
    path = list_file(encoder, start, tmp_path / "linear_finetuned.pt", as_module=as_module)
    found = reading.inspect(path, "tiny")
    assert found.method == "linearized"
    towers = encoder.model.visual.state_dict(), start.model.visual.state_dict()
    for name in found.theta:
        assert torch.equal(found.theta[name], towers[0][name])
        assert torch.equal(found.theta0[name], towers[1][name])
    for given in (base, list_file(start, start, tmp_path / "linear_zeroshot.pt")):
        vector = importing.vector_of(path, "tiny", base=given)
        assert vector == TaskVector.between(found.theta0, found.theta)


def test_lists_of_other_weights_or_not_whole(tmp_path):
    start = old_encoder(1)
    path = list_file(tuned(start), start, tmp_path / "x.pt")
    refuses(r"linearized around other weights than tiny", importing.vector_of, path, "tiny")
    base = save(old_encoder(2), tmp_path / "other.pt")
    refuses(r"other weights than other\.pt", importing.vector_of, path, "tiny", base=base)
    state = LinearizedImageEncoder(start, start).state_dict()
    for name in ("model.params.3", "model.params0.7"):
        torch.save({n: x for n, x in state.items() if n != name}, tmp_path / "x.pt")
        refuses("do not belong together", importing.read, tmp_path / "x.pt", "tiny")
    torch.save(state, tmp_path / "x.pt")
    refuses("do not fit the encoder", lambda: importing.read(tmp_path / "x.pt", "mini_xs"))


def test_theta_0_tells_apart_two_orders_of_the_same_shapes():
    block = "transformer.resblocks.0"
    own = {f"{block}.ln_1.weight": (3,), f"{block}.attn.weight": (3,), "end": (2,)}
    shapes = {name: torch.Size(size) for name, size in own.items()}
    known = {name: torch.randn(size) for name, size in own.items()}
    order = [f"{block}.attn.weight", f"{block}.ln_1.weight", "end"]
    lists = {}
    for i, name in enumerate(order):
        lists |= {f"model.params.{i}": known[name] + 0.1, f"model.params0.{i}": known[name]}
    refuses("fit the encoder in several orders", layouts.recognise, lists, shapes)
    found = layouts.recognise(lists, shapes, known)
    assert all(torch.equal(found.theta0[name], known[name]) for name in own)


# What does not fit.
def test_missing_unexpected_and_misshapen_parameters_are_one_error(tmp_path):
    own = hub_model()
    state = published(own)
    state["vision_model.encoder.layers.0.mlp.fc9.bias"] = torch.ones(3)
    del state["vision_model.encoder.layers.1.self_attn.k_proj.weight"]
    state["vision_model.pre_layrnorm.weight"] = torch.ones(WIDTH + 1)
    state["visual_projection.weight"] = own.visual_projection.weight.detach()
    caught = refused("1 missing: transformer.resblocks.1.attn.in_proj_weight;", state, tmp_path)
    assert "1 unexpected: encoder.layers.0.mlp.fc9.bias;" in caught
    assert "1 of another shape: ln_pre.weight" in caught


@pytest.mark.parametrize("form", ["folder", "module", "inner module"])
def test_another_activation_or_number_of_heads_is_another_network(tmp_path, form):
    path = save(old_encoder(1, quick=False), tmp_path / "x.pt")
    refuses("activation gelu, and model 'tiny' quickgelu", importing.read, path, "tiny")
    importing.read(path, "tiny_gelu")
    for options in ({"act": "gelu"}, {"heads": 4}, {}):
        own, path = hub_model(**options), tmp_path / form
        if form == "folder":
            own.save_pretrained(path)
        else:
            save(own.vision_model if form == "inner module" else own, path)
        if options:
            refuses("computes something else", importing.read, path, "tiny")
        else:
            importing.read(path, "tiny")


@pytest.mark.parametrize("begin", ["nothing", "safetensors", "a pickle", "a zip file", "an index"])
def test_a_large_file_of_something_else_is_refused_at_once(tmp_path, begin):
    """All of it would take minutes to hash, and more memory than there is to read."""
    path, size = tmp_path / "x.pt", 30 << 30
    starts = {"nothing": b"", "a pickle": b"\x80\x02", "a zip file": b"PK\x03\x04"}
    header = json.dumps({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(starts.get(begin, len(header).to_bytes(8, "little") + header))
    if begin == "an index":
        (path := tmp_path / "model.safetensors.index.json").write_text("{")
    os.truncate(path, size + (len(header) + 8 if begin == "safetensors" else 0))
    began = time.monotonic()
    told = refuses(r"has 3[01] GiB, and no checkpoint|index of", importing.read, path, "tiny")
    assert time.monotonic() - began < 2 and str(path) in told


def test_text_models_and_folders_without_weights(tmp_path):
    torch.save({"a": X}, tmp_path / "x.pt")
    refuses("checkpoints of T5", lambda: importing.read(tmp_path / "x.pt", "mini_t5"))
    refuses(r"has none of task_vector\.safetensors", importing.read, tmp_path, "tiny")
    refuses("did you mean 'tiny'", lambda: importing.read(tmp_path / "x.pt", "tinny"))


def test_a_repository_without_a_network_is_one_message(monkeypatch):
    began = time.monotonic()
    caught = refuses("", importing.read, "tanganke/clip-vit-base-patch32_sun397", "tiny")
    assert time.monotonic() - began < 5
    for part in ("no network in tests", "hf download tanganke/clip-vit-base-patch32_sun397"):
        assert part in caught
    assert caught.count("\n") == 0
    for path in ("not/a/repository.pt", "../x.pt", "./x.pt", "x.pt", "a--b/c", "a/b.", "-/-"):
        refuses("there is no checkpoint", importing.read, path, "tiny")


def test_weights_that_are_not_here_can_be_given_as_base(tmp_path, monkeypatch):
    monkeypatch.setenv(weights.FOLDER, str(tmp_path / "empty"))
    start = old_encoder(1)
    paths = save(start, tmp_path / "zeroshot.pt"), save(tuned(start), tmp_path / "x.pt")
    caught = refuses("as base", importing.vector_of, paths[1], "tiny")
    assert "init=" not in caught and "weights=" not in caught  # which an import cannot do
    vector = importing.vector_of(paths[1], "tiny", base=paths[0])
    expected = tuned(start).model.visual.proj - start.model.visual.proj
    assert torch.equal(vector["proj"], expected.detach())
    refuses("does not differ", lambda: importing.vector_of(paths[0], "tiny", base=paths[0]))
    zero = {n: torch.zeros_like(x) for n, x in start.model.visual.state_dict().items()}
    refuses("zero everywhere", importing.vector_of, paths[1], "tiny", base=saved(tmp_path, zero))


# Files that are broken, or made to do harm.
def repr_of(value):
    return type(value).__name__ if not isinstance(value, str) else ascii(value[:20])


def nested(inner, *names):
    for name in names:
        inner = Inert("nn.Module", state={"_modules": {name: inner}})
    return inner


@pytest.mark.parametrize("heads", [X, 10**5000, "2", True, 0, None, "deep"], ids=repr_of)
def test_what_is_no_number_of_heads_is_not_one(heads):
    for _ in range(100_000 if heads == "deep" else 0):
        heads = (heads,)
    attention = Inert("nn.Attention", state={"num_heads": heads, "_modules": {}})
    mlp = nested(Inert("a.b\nc\x1b[31m", state={"_modules": {}}), "gelu")
    block = Inert("nn.Module", state={"_modules": {"attn": attention, "mlp": mlp}})
    assert networks.facts_of_modules(nested(block, "0", "resblocks", "transformer")) == {}


HUB = "vision_model.encoder.layers.0.self_attn"
EMBEDDING = "embeddings.class_embedding"
OTHERS = {
    "none": ({"a.weight": X}, "no 'class_embedding' under any prefix"),
    "adapters": ({"layer.lora_A.weight": X}, "low-rank adapters"),
    "two": ({"a.class_embedding": X[0].clone(), "b.class_embedding": X[1].clone()}, "2 encoders"),
    "two towers": ({f"{i}.{EMBEDDING}": X.clone() for i in "ab"}, "2 encoders"),
    "q of another shape": ({f"{HUB}.q_proj.weight": torch.zeros(2, 3)}, "have the shapes"),
    "scalars": ({f"{HUB}.{i}_proj.weight": torch.zeros(()) for i in "qkv"}, "have the shapes"),
    "digits": (
        {f"params{i}.{'9' * 5000}": torch.zeros(2) for i in ("", "0")}, "no 'class_embedding'",
    ),
    "escapes": ({"a\nb\x1b[31m": torch.zeros(2)}, r"tensors: 'a\\nb\\x1b\[31m'"),
    "long": ({"a" * 1_000_000: torch.zeros(2)}, "tensors: 'aaa"),
    "long beside it": ({"class_embedding": X[0].clone(), "a" * 1_000_000: X}, "unexpected: 'aaa"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_other_tensors_are_one_short_line(tmp_path, case):
    state, message = OTHERS[case]
    if any(HUB in name for name in state):
        state = {n: x.clone() for n, x in published(hub_model()).items()} | state
    refused(message, state, tmp_path)


@pytest.mark.parametrize(
    "config",
    ["[" * 100_000, '{"vision_config":' * 100_000, '{"num_attention_heads": "2"}'],
    ids=repr_of,
)
def test_settings_that_tell_nothing_are_left_out(tmp_path, config):
    save_file(published(hub_model()), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(config)
    importing.read(tmp_path, "tiny")


ABOUT = {"task": "t", "method": "nonlinear", "model": "tiny", "init": "pretrained", "weights": "x"}


@pytest.mark.parametrize(
    "header",
    [
        "[" * 100_000, "{}", "[]", {"init": "foo"}, {"method": "foo"}, {"method": []},
        {"task": "a\nb"}, {"task": " "}, {"task": 3}, {"weights": "x" * 1000},
    ],
    ids=range(10),
)  # fmt: skip
def test_an_export_that_says_something_else_is_one_line(tmp_path, header):
    header = header if isinstance(header, str) else json.dumps(ABOUT | header)
    refused("does not say what", {"proj": theta0()["proj"]}, tmp_path, metadata={"tasklab": header})


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.int64, torch.complex64])
def test_only_floating_point_numbers_are_weights(tmp_path, dtype):
    own = {name: x.to(dtype) if name == "proj" else x for name, x in theta0().items()}
    for about in (None, {"tasklab": json.dumps(ABOUT)}):
        refused(rf"has {str(dtype)[6:]} numbers in proj, where", own, tmp_path, metadata=about)


def test_an_exported_vector_is_float32(tmp_path):
    half = {name: x.half() for name, x in theta0().items()}
    about = {"tasklab": json.dumps(ABOUT | {"weights": importing.hash_of(theta0(), "tiny")})}
    vector = importing.vector_of(saved(tmp_path, half, metadata=about), "tiny")
    assert vector["proj"].dtype == torch.float32 and len(vector) == len(half)
    refused("does not differ", {}, tmp_path, metadata=about)


WHERE = "tasklab.exchange.sources.is_safetensors", "tasklab.exchange.reading.file_sha256"


@pytest.mark.parametrize("where", [*WHERE, "pathlib.Path.is_dir"])
def test_what_cannot_be_read_is_one_line(tmp_path, where, monkeypatch):
    path = moved(tmp_path / "x.safetensors")
    monkeypatch.setattr(where, mock.Mock(side_effect=PermissionError(13, "Permission denied")))
    for base in (None, path):
        refuses(r"x\.safetensors.*Permission denied", importing.vector_of, path, "tiny", base=base)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a" * 10**6, "File name too long"),
        (f"a/{'b' * 300}", "there is no checkpoint|too long"),
        (f"a/{'b' * 200}", "there is no checkpoint"),
        ("~nosuchuser/x.pt", "cannot be read: Could not determine home"),
        ("", "a checkpoint is a file"),
        ("a\nb.pt", r"'a\\nb\.pt' has control characters"),
        ("fifo", "neither a file nor a folder"),
        ("loop", "neither a file nor a folder"),
        ("own/er/", "there is no checkpoint"),
        ("https://example.org/own/er", "there is no checkpoint"),
    ],
    ids=repr_of,
)
def test_a_path_that_is_none_is_one_line(path, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    Path("loop").symlink_to("loop")
    own = moved(tmp_path / "x.safetensors")
    for file, base in ((path, None), (own, path)):
        caught = refuses(message, importing.vector_of, file, "tiny", base=base)
        assert caught.isprintable() and len(caught) < 600


@pytest.mark.parametrize("page", ["own/er", "own/er/", "own/er/tree/main"])
def test_a_repositorys_page_is_the_repository(page):
    with pytest.raises(TasklabError, match="`hf download own/er` fetches it"):
        importing.read(f"{huggingface_hub.constants.ENDPOINT}/{page}", "tiny")


# Parts of checkpoints, and other things.
def test_two_vision_models_without_projection_need_no_weights(tmp_path, monkeypatch):
    own = hub_model()
    paths = [tmp_path / f"{name}.safetensors" for name in ("base", "cars")]
    save_file(published(own), paths[0])
    save_file(published(tuned(own)), paths[1])
    whole = dict(theta0())
    with_one = importing.vector_of(paths[1], "tiny", base=moved(tmp_path / "m.safetensors"))
    assert torch.equal(with_one["proj"], torch.zeros_like(whole["proj"]))
    from_none = importing.vector_of(tmp_path / "m.safetensors", "tiny", base=paths[0])
    assert torch.equal(from_none["proj"], (whole["proj"] + 0.01) - whole["proj"])
    monkeypatch.setenv(weights.FOLDER, str(tmp_path / "empty"))
    made = importing.compare(paths[1], "tiny", base=paths[0])
    assert "proj" not in made.vector and len(made.vector) == len(whole) - 1
    assert any("has a projection" in note for note in made.checkpoint.notes)
    refuses("as base", importing.vector_of, tmp_path / "m.safetensors", "tiny", base=paths[0])


def test_a_linearized_encoder_has_its_theta_0(tmp_path, monkeypatch):
    monkeypatch.setenv(weights.FOLDER, str(tmp_path / "empty"))
    start = old_encoder(1)
    path = list_file(tuned(start), start, tmp_path / "x.pt")
    made = importing.compare(path, "tiny")
    expected = tuned(start).model.visual.proj.data - start.model.visual.proj
    assert torch.equal(made.vector["proj"], expected)
    assert made.distance > 0 and "theta_0 in x.pt" in made.base
    assert any("was not compared" in note for note in made.checkpoint.notes)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("open_clip", "visual.proj"),
        ("open_clip", "visual.ln_post.bias"),
        ("transformers", "vision_model.encoder.layers.1.self_attn.k_proj.weight"),
        ("transformers", "vision_model.post_layernorm.bias"),
        ("whole", "visual_projection.weight"),
    ],
)
def test_a_checkpoint_that_is_cut_off_is_not_of_another_model(tmp_path, kind, name):
    own = kind == "open_clip"
    state = {f"visual.{n}": x for n, x in theta0().items()} if own else published(hub_model())
    if own:
        state["text_projection"] = X
    if kind == "whole":
        state["text_model.embeddings.token_embedding.weight"] = X
    state.pop(name, None)
    refused(re.escape(f"not whole: 1 missing ({name}), and the others fit"), state, tmp_path)


def test_a_folder_of_open_clip_comes_before_other_libraries_files(tmp_path):
    save_file({"blocks.0.weight": X}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"num_attention_heads": 7}')
    save_file(dict(theta0()), tmp_path / "open_clip_model.safetensors")
    importing.read(tmp_path, "tiny")


@pytest.mark.parametrize("safe", [True, False])
def test_a_checkpoint_in_several_files(tmp_path, safe):
    state, name = published(hub_model()), "model" if safe else "pytorch_model"
    ending = "safetensors" if safe else "bin"
    files = [tmp_path / f"{name}-0000{i}-of-00002.{ending}" for i in (1, 2)]
    for i, file in enumerate(files):
        part = {n: x for j, (n, x) in enumerate(state.items()) if j % 2 == i}
        (save_file if safe else torch.save)(part, file)
    index = tmp_path / f"{name}.{ending}.index.json"
    index.write_text(json.dumps({"weight_map": {"a": files[0].name, "b": files[1].name}}))
    (tmp_path / "config.json").write_text("{}")
    whole = tmp_path / "whole.safetensors"
    save_file(state, whole)
    found = [reading.inspect(path, "tiny") for path in (whole, tmp_path, index)]
    for one in found[1:]:
        assert all(torch.equal(x, one.theta[n]) for n, x in found[0].theta.items())
    assert found[1].sha256 == found[2].sha256 != found[0].sha256
    refuses("is one part of a checkpoint", lambda: importing.read(files[0], "tiny"))
    files[1].unlink()
    refuses("of which 1 are not beside it", importing.read, tmp_path, "tiny")
    for text in ("[" * 100_000, "[]", '{"weight_map": {"a": "../x"}}', '{"weight_map": {"a": 1}}'):
        index.write_text(text)
        refuses("does not say which files", importing.read, tmp_path, "tiny")


def test_a_folder_says_what_it_has(tmp_path):
    for name in ("zeroshot.pt", "finetuned.pt", "notes.txt"):
        torch.save(dict(theta0()), tmp_path / name)
    refuses(r"It has finetuned\.pt, zeroshot\.pt: name one", importing.read, tmp_path, "tiny")
    save_file({"base_model.q_proj.lora_A.weight": X}, tmp_path / "adapter_model.safetensors")
    refuses("low-rank adapters", importing.read, tmp_path, "tiny")
    state = {f"base_model.model.{n}": x for n, x in published(hub_model()).items()}
    refused("merge them into", state | {"base_model.model.q_proj.lora_A.weight": X}, tmp_path)
    own = loading.load("mini_clip_less").encoder.params
    save_file({f"visual.{name}": x + 0.01 for name, x in own.items()}, tmp_path / "x.safetensors")
    assert len(importing.vector_of(tmp_path / "x.safetensors", "mini_clip_less")) == len(own)


@pytest.mark.parametrize("first", ["cls_token", "trunk.stem.0.weight"])
@pytest.mark.parametrize("head", ["head.weight", "head.fc.bias", "fc.weight", "classifier.bias"])
def test_the_classifier_of_the_pretraining_task_is_left_out(first, head):
    own = {first: torch.Size([2]), "head.proj.weight": torch.Size([2])}
    for prefix in ("", "module."):
        tensors = {f"{prefix}{name}": torch.zeros(2) for name in (*own, head)}
        found = layouts.recognise(tensors, own)
        assert set(found.theta) == set(own) and found.left == 1 and not found.missing


@pytest.mark.parametrize("base", [None, "gone.pt"])
def test_a_file_that_is_none_is_told_before_the_weights_are_sought(tmp_path, base, monkeypatch):
    monkeypatch.setenv(weights.FOLDER, str(tmp_path / "empty"))
    (tmp_path / "x.pt").write_text("<!doctype html>")
    refuses(r"x\.pt", lambda: importing.vector_of(tmp_path / "x.pt", "tiny", base=base))


@pytest.mark.parametrize(
    ("model", "near"),
    [("ViT-B-32", "vitb32"), ("ViT-B-16", "vitb16"), ("ViT-L-14", "vitl14"), ("MINI", "mini")],
)
def test_the_papers_names_of_models_are_understood(tmp_path, model, near):
    caught = refuses(f"'{near}'", importing.vector_of, moved(tmp_path / "x.safetensors"), model)
    assert "as base" not in caught


# The store.
def moved(path, names=None):
    own = {n: x + 0.01 if names is None or n in names else x for n, x in theta0().items()}
    save_file(own, path)
    return path


def test_an_imported_vector_can_be_used_by_its_name(store, tmp_path):
    path = moved(tmp_path / "finetuned.safetensors")
    record = importing.add(store, path, "tiny", "Cars")
    assert record["name"] == "Cars_nonlinear" and record["sha256"] and record["weights"]
    vector = importing.imported(store, "tiny", "Cars_nonlinear")
    assert vector == importing.vector_of(path, "tiny")
    proj = vector.apply(theta0())["proj"]
    torch.testing.assert_close(proj, theta0()["proj"] + 0.01, rtol=0, atol=1e-6)
    assert importing.add(store, path, "tiny", "Cars") == record  # again: nothing is made twice
    assert places.listed(store) == [record]
    refuses("did you mean 'Cars_nonlinear'", importing.imported, store, "tiny", "Car_nonlinear")
    refuses("model 'mini'", importing.imported, store, "mini", "Cars_nonlinear")


def test_a_name_stands_for_one_vector(store, tmp_path, monkeypatch):
    importing.add(store, moved(tmp_path / "a.safetensors"), "tiny", "Cars")
    other = moved(tmp_path / "b.safetensors", ("proj",))
    refuses(r"'Cars_nonlinear' .*a\.safetensors", importing.add, store, other, "tiny", "Cars")
    importing.add(store, other, "tiny", "Cars", name="second")
    assert [one["name"] for one in places.listed(store)] == ["Cars_nonlinear", "second"]
    assert places.listed(store, "tiny") == places.listed(store) and not places.listed(store, "mini")
    refuses("did you mean 'tiny'", places.listed, store, "tinny")
    monkeypatch.setattr(Path, "glob", mock.Mock(side_effect=PermissionError(13, "denied")))
    refuses("cannot read the store", places.listed, store)


@pytest.mark.parametrize("name", ["a/b", "a@b", "a=b", "a:2", "-a", "~a", "..", "a\\b"])
def test_a_name_that_no_command_could_take_is_refused(store, tmp_path, name):
    path = moved(tmp_path / "a.safetensors")
    refuses("is none", importing.add, store, path, "tiny", "Cars", name=name)
    if name != "..":  # ".._nonlinear" is a name
        refuses("is none", importing.add, store, path, "tiny", name)
    assert not places.listed(store)
    assert importing.add(store, path, "tiny", name, name="Cars")["task"] == name
    assert places.names_import("Cars") and places.imported("Cars", store, "tiny").record


def test_the_method_is_checked(store, tmp_path):
    names = tuple(f"transformer.resblocks.{i}.attn.in_proj_weight" for i in range(LAYERS))
    path = moved(tmp_path / "a.safetensors", names)
    importing.add(store, path, "tiny", "Cars", method="attention")
    vector = importing.imported(store, "tiny", "Cars_attention")
    assert {n for n, x in vector.items() if x.any()} == set(names) and "proj" not in vector
    other = moved(tmp_path / "b.safetensors")
    refuses("'attention' does not", importing.add, store, other, "tiny", "Cars", method="attention")
    refuses("'linearized'", importing.add, store, path, "tiny", "Cars", method="linearised")
    start = old_encoder(1)
    linear = list_file(tuned(start), start, tmp_path / "x.pt")
    base = save(start, tmp_path / "zeroshot.pt")
    with pytest.raises(TasklabError, match="is linearized, not nonlinear"):
        importing.add(store, linear, "tiny", "Cars", method="nonlinear", base=base)
    assert importing.add(store, linear, "tiny", "Cars", base=base)["method"] == "linearized"


@pytest.mark.parametrize("part", ["task", "name"])
@pytest.mark.parametrize("text", ["", " ", "Ca\nrs", "\x1b[31m", "a" * 1000], ids=repr_of)
def test_tasks_and_names_can_be_shown(store, tmp_path, part, text):
    words = {"task": "Cars", "name": "x"} | {part: text}
    with pytest.raises(TasklabError, match=f"{part} is ") as caught:
        importing.add(store, moved(tmp_path / "a.safetensors"), "tiny", **words)
    assert str(caught.value).isprintable()


def test_what_the_file_does_not_tell_is_noted(store, tmp_path):
    path = moved(tmp_path / "a.safetensors")
    record = importing.add(store, path, "tiny", "Cars", method="linearized")
    assert any("nothing in it tells that it is linearized" in note for note in record["notes"])
    about = ABOUT | {"weights": importing.hash_of(theta0(), "tiny")}
    save_file(dict(theta0()), path, metadata={"tasklab": json.dumps(about)})
    record = importing.add(store, path, "tiny", "Dogs")
    assert any("exported as a vector of 't'" in note for note in record["notes"])
    assert not any("exported" in n for n in importing.add(store, path, "tiny", "t")["notes"])


# Export.
@pytest.mark.parametrize("method", ["nonlinear", "linearized"])
def test_what_is_exported_is_imported_bit_for_bit(store, run_of, tmp_path, method):
    run, encoder = run_of(method)
    folder = exporting.write_run(run, encoder, tmp_path / "out", base=True)
    vector = TaskVector(run.tensors())
    assert importing.load(folder, encoder) == vector
    for given in (None, folder / exporting.BASE_FILE):
        assert importing.vector_of(folder, "mini_xs", base=given) == vector
    record = importing.add(store, folder, "mini_xs", "Signs")
    assert record["method"] == method and record["name"] == f"Signs_{method}"
    assert importing.imported(store, "mini_xs", f"Signs_{method}") == vector
    refuses("read it with vector_of", importing.read, folder, "mini_xs")
    other = "linearized" if method == "nonlinear" else "nonlinear"
    with pytest.raises(TasklabError, match=f"is {method}, not {other}"):
        importing.add(store, folder, "mini_xs", "Signs", method=other, name="x")
    refuses("task vector of model 'mini_xs', not of 'mini'", importing.vector_of, folder, "mini")
    content = json.loads((folder / "config.json").read_text())
    assert content["config"] == run.config and content["record"] == run.record


def test_a_flipped_bit_in_an_export_is_refused(store, run_of, tmp_path):
    run, encoder = run_of("nonlinear")
    folder = exporting.write_run(run, encoder, tmp_path / "out", base=True)
    vector, config = folder / exporting.VECTOR_FILE, folder / exporting.CONFIG_FILE
    files = json.loads(config.read_text())["files"]
    assert files == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in (exporting.VECTOR_FILE, exporting.BASE_FILE)
    }
    whole, about = vector.read_bytes(), config.read_text()
    flip(vector, -1)
    refuses(r"is damaged: .*fetch it again", importing.load, folder, encoder)
    refuses(r"is damaged: .*fetch it again", importing.add, store, folder, "mini_xs", "Signs")
    vector.write_bytes(whole)
    for text in (about[:-9], "[]", "\xff", "[" * 100_000):
        config.write_text(text, "latin-1")
        refuses(r"config\.json is damaged .*cannot be checked", importing.load, folder, encoder)
    old = {name: part for name, part in json.loads(about).items() if name != "files"}
    config.write_text(json.dumps(old))  # as exports were before
    assert importing.load(folder, encoder) == TaskVector(run.tensors())


def test_an_export_is_not_written_over_another(run_of, tmp_path):
    (run, encoder), (other, _) = run_of("nonlinear"), run_of("linearized", steps=4)
    folder = exporting.write_run(run, encoder, tmp_path / "out")
    exporting.write_run(run, encoder, folder)
    (folder / "config.json").write_text("{}")
    refuses("holds something else", exporting.write_run, other, encoder, folder)
    elsewhere, _ = run_of("nonlinear", weights="0" * 64)
    refuses("weights 000000000000", exporting.write_run, elsewhere, encoder, tmp_path / "third")


def test_a_head_that_was_trained_along_is_a_file_of_its_own(store, run_of, tmp_path):
    run, encoder = run_of("nonlinear", head="trained")
    tensors = {**run.tensors(), "classifier.weight": torch.ones(3, 128)}
    again = store.get("finetune", {**run.config, "seed": 3}, lambda _: (tensors, {}))
    folder = exporting.write_run(again, encoder, tmp_path / "out")
    assert importing.load(folder, encoder) == TaskVector(run.tensors())
    head = (folder / exporting.HEAD_FILE).read_bytes()
    assert b"classifier.weight" in head
    assert exporting.HEAD_FILE in (folder / "README.md").read_text()


# The command line.
def test_import_and_list(store, tmp_path, capsys, monkeypatch):
    """Letters that the terminal does not have are escaped."""
    here = ["--store-root", str(store.root)]
    assert main(["import", "--list", *here]) == 0
    assert "nothing is imported" in capsys.readouterr().out
    path = moved(tmp_path / "finetuned.safetensors")
    for encoding, shown in (
        ("utf-8", "Vögel 鳥".encode()),
        ("ascii", rb"V\xf6gel \u9ce5"),
        ("cp1252", b"V\xf6gel \\u9ce5"),
    ):
        with io.TextIOWrapper(io.BytesIO(), encoding) as stream:
            monkeypatch.setattr(sys, "stdout", stream)
            words = ["import", str(path), "--model", "tiny", "--task", "Vögel 鳥", *here]
            assert main(words) == 0 and main(["import", "--list", *here]) == 0
            told = stream.buffer.getvalue()
        assert told.count(shown) == 4
        for part in (b"names as in open_clip", b"_nonlinear' of tiny", b"theta_0's"):
            assert part in told
        assert b"\ntiny  " + shown + b"_nonlinear  nonlinear  " in told
    assert places.listed(store)[0]["task"] == "Vögel 鳥"


def test_importing_reads_without_executing(store, tmp_path):
    """The whole command, on a pickle that would leave a mark."""
    mark = tmp_path / "executed"

    class Reduce:
        def __reduce__(self):
            import os

            return os.system, (f"touch {mark}",)

    encoder = old_encoder(1)
    encoder.train_preprocess = Reduce()
    path = save(encoder, tmp_path / "hostile.pt")
    words = ["import", str(path), "--model", "tiny", "--task", "x"]
    assert main([*words, "--store-root", str(store.root)]) == 0
    assert not mark.exists()
    expected = encoder.model.visual.proj - theta0()["proj"]
    assert torch.equal(importing.imported(store, "tiny", "x_nonlinear")["proj"], expected)
