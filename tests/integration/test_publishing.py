"""Merged models that commands write compute in open_clip and transformers what they do here."""

import contextlib
import json
import os
import re
import subprocess

import open_clip
import pytest
import torch
import transformers

from tasklab import checkpoints, mini
from tasklab.__main__ import main
from tasklab.analyses import merging
from tasklab.models import loading
from tasklab.models.encoder import math_attention
from tasklab.storage import atomic
from tasklab.storage.checksums import file_sha256
from tests.vectors import noise

MODEL = "mini_xs"


def vector(encoder, seed):
    return noise(encoder.params, seed)


@pytest.fixture
def merge(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKLAB_STORE", str(tmp_path / "store"))

    def call(model, *words):
        encoder = loading.load(model).encoder
        for seed, name in enumerate("ab"):
            vector(encoder, seed).save(f"{name}.safetensors")
        return main(["merge", "a.safetensors", "b.safetensors", "--model", model, *words])

    return call


def expected(model, method="ties", **options):
    clip = loading.load(model)
    vectors = [vector(clip.encoder, seed) for seed in range(2)]
    known = merging.defaults.Known.of(vectors, clip.encoder.params)
    options = merging.METHODS[method].recommended(known) | options
    tau = merging.merge(method, vectors, **options)
    x = torch.rand((3, 3, 32, 32), generator=torch.Generator().manual_seed(9))
    words = mini.tokenize(["a red square", "a photo of a very large blue circle"])
    images = clip.encoder(tau.apply(clip.encoder.params), x)
    network = loading.both_towers(model)
    with torch.no_grad(), math_attention():
        return x, words, images.detach(), network.encode_text(words)


def card_of(file):
    return json.loads(re.search(r"```json\n(.*?)\n```", file.read_text("utf-8"), re.S)[1])


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("model", "suffix"), [(MODEL, ".safetensors"), ("mini_convnext", ".pt")])
def test_open_clip_computes_the_merged_features(merge, tmp_path, model, suffix):
    words = ["--method", "ties", "--option", "keep=0.3", "--alpha", "0.5"]
    assert merge(model, *words, "--model-out", f"edited{suffix}") == 0
    x, texts, images, text_features = expected(model, keep=0.3, alpha=0.5)
    open_clip.add_model_config(tmp_path / "edited.json")
    network, _, transform = open_clip.create_model_and_transforms(
        "edited",
        pretrained=str(tmp_path / f"edited{suffix}"),
        image_mean=(0.5, 0.5, 0.5),
        image_std=(0.27, 0.27, 0.27),
    )
    with torch.no_grad():
        close(network.eval().encode_image(x), images)
        close(network.encode_text(texts), text_features)
    before = loading.load(model).encoder
    assert not torch.allclose(images, before(before.params, x), atol=1e-3)
    facts = card_of(tmp_path / "edited.md")
    assert facts["model"] == model and facts["method"] == "ties"
    assert facts["options"] == {"keep": 0.3, "alpha": 0.5}
    assert facts["weights"] == before.weights_hash and facts["base"] == f"{model} (pretrained)"
    assert facts["file_sha256"] == file_sha256(tmp_path / f"edited{suffix}")
    for one, name in zip(facts["vectors"], "ab", strict=True):
        file = tmp_path / f"{name}.safetensors"
        assert (one["vector"], one["sha256"]) == (file.name, file_sha256(file))
    notes = " ".join(checkpoints.compare(tmp_path / f"edited{suffix}", model).checkpoint.notes)
    assert "activation" not in notes  # which the file beside it names
    (tmp_path / "edited.json").unlink()
    notes = " ".join(checkpoints.compare(tmp_path / f"edited{suffix}", model).checkpoint.notes)
    assert ("no config.json names the activation" in notes) == (model == MODEL)


def test_transformers_computes_the_merged_features(merge, tmp_path):
    assert merge(MODEL, "--method", "ties", "--model-out", "edited") == 0
    x, texts, images, text_features = expected(MODEL)
    network, report = transformers.CLIPModel.from_pretrained(
        tmp_path / "edited", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    with torch.no_grad():
        found = network(input_ids=texts, pixel_values=x)
    norm = torch.nn.functional.normalize
    close(found.image_embeds, norm(images, dim=-1))
    close(found.text_embeds, norm(text_features, dim=-1))
    scale = loading.load(MODEL).logit_scale
    close(found.logits_per_image, scale * norm(images, dim=-1) @ norm(text_features, dim=-1).T)
    settings = json.loads((tmp_path / "edited" / "preprocessor_config.json").read_text("utf-8"))
    assert settings["image_mean"] == [0.5] * 3 and settings["size"] == {"shortest_edge": 32}


def test_a_base_is_what_the_merged_model_starts_from(merge, tmp_path):
    other = loading.load("mini_s_seed0").encoder.params
    own = loading.load("mini_s").encoder
    torch.save({f"visual.{name}": x for name, x in other.items()}, tmp_path / "start.pt")
    words = ["--base", "start.pt", "--model-out", "edited.pt"]
    assert merge("mini_s", *words, "--method", "average", "--alpha", "1") == 0
    stored = torch.load(tmp_path / "edited.pt", weights_only=True)
    tau = merging.merge("average", [vector(own, seed) for seed in range(2)])
    for name, x in tau.apply(other).items():
        torch.testing.assert_close(stored[f"visual.{name}"], x, rtol=0, atol=1e-6)
    assert card_of(tmp_path / "edited.md")["base"].startswith("start.pt")


@pytest.mark.parametrize(
    ("model", "words", "told"),
    [
        ("mini_few", ["--model-out", "m.pt"], "is no CLIP"),
        ("mini_t5", ["--model-out", "m.pt"], "is no CLIP"),
        ("mini_clip_less", ["--model-out", "m.pt"], "ships without a text tower"),
        ("mini_convnext", ["--model-out", "m"], "has no image tower like that"),
        (MODEL, ["--model-out", "m.ckpt"], "no name of a checkpoint"),
        (MODEL, ["--model-out", "b.safetensors"], "is there already"),
        (MODEL, ["--model-out", "full"], "is there already"),
        (MODEL, ["--model-out", "taken.safetensors"], "taken.md is there already"),
        (MODEL, ["--model-out", "x/m.pt"], "is no folder"),
        (MODEL, ["--model-out", "m.safetensors", "--out", "m.safetensors"], "are the same"),
        (MODEL, ["--model-out", ""], "--model-out is empty"),
        (MODEL, ["--model-out", "m.pt", "--base", "other.pt"], "other.pt"),
    ],
)
def test_what_cannot_be_written(merge, tmp_path, monkeypatch, capsys, model, words, told):
    monkeypatch.setattr(merging, "merge", None)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "taken.md").write_text("mine")
    (tmp_path / "other.pt").write_bytes(b"no checkpoint")
    suite = ["--suite", "mini_text"] if model == "mini_t5" else []
    assert merge(model, *words, *suite) == 2
    out, err = capsys.readouterr()
    assert told in err and err.count("\n") == 1 and out == ""
    there = {"a.safetensors", "b.safetensors", "full", "taken.md", "other.pt"}
    assert {one.name for one in tmp_path.iterdir()} - {"store"} == there
    assert (tmp_path / "taken.md").read_text() == "mine"


def test_a_full_disk_leaves_neither_vector_nor_model(merge, tmp_path, monkeypatch, capsys):
    assert merge(MODEL, "--out", "first.safetensors") == 0
    names, first = {one.name for one in tmp_path.iterdir()}, tmp_path / "first.safetensors"
    before = first.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tasklab.storage.vectors.write_tensors", full)
    for place in ("edited.safetensors", "edited"):
        assert merge(MODEL, "--out", "first.safetensors", "--model-out", place) == 2
        assert "Free some space" in capsys.readouterr().err
        assert {one.name for one in tmp_path.iterdir()} == names
        assert first.read_bytes() == before


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_ended_between_two_files_the_same_command_goes_on(merge, tmp_path, monkeypatch, suffix):
    words = ["--method", "average", "--out", "m.safetensors", "--model-out", f"edited{suffix}"]
    words = ["merge", "a.safetensors", "b.safetensors", "--model", MODEL, *words]
    written = ["m.safetensors", "edited.md", "edited.json", f"edited{suffix}"]  # in this order
    publish = atomic.publish

    def contents():
        return {one: (tmp_path / one).read_bytes() for one in written if (tmp_path / one).exists()}

    assert merge(MODEL, *words[5:]) == 0
    whole = contents()
    for place, name in enumerate(written):
        for one in written:
            (tmp_path / one).unlink()

        def stopped(draft, path, name=name):
            if path.name == name:
                raise SystemExit(137)
            publish(draft, path)

        with monkeypatch.context() as patched, contextlib.suppress(SystemExit):
            patched.setattr(atomic, "publish", stopped)
            main(words)
        assert [*contents()] == written[:place]
        assert main(words) == 0
        assert contents() == whole
    with subprocess.Popen(["true"]) as ended:  # killed after the last of them
        mine = atomic.marked(tmp_path / ".merge").name
        (tmp_path / mine.replace(f"-{os.getpid()}-", f"-{ended.pid}-")).mkdir()
    assert main(words) == 2  # what is whole stays
    assert contents() == whole and not [*tmp_path.glob(".merge*")]


def test_a_tangent_vector_makes_no_checkpoint(merge, tmp_path, capsys):
    from tasklab.exchange import merged

    encoder = loading.load(MODEL).encoder
    one = merged.Source(
        name="t", vector=vector(encoder, 0), model=MODEL, task="T", method="linearized",
        weights=encoder.weights_hash,
    )  # fmt: skip
    merged.write_vector(tmp_path / "t.safetensors", one.vector, [one], {"method": "arithmetic"})
    words = ["merge", "t.safetensors", "t.safetensors", "--model-out", "m.pt"]
    assert main([*words, "--out", "n.safetensors"]) == 2
    assert "belongs in the linearized model" in capsys.readouterr().err
    assert not (tmp_path / "m.pt").exists() and not (tmp_path / "n.safetensors").exists()
