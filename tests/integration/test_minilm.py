"""all-MiniLM-L6-v2: its architecture beside transformers, its weights, and analyses of texts."""

import warnings

import pytest
import torch
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from tasklab import Lab, TaskVector
from tasklab.book import captions, explore
from tasklab.evidence import experiments
from tasklab.exchange import exporting
from tasklab.models import bert, heads, loading, sentences, zoo
from tasklab.storage.store import read_tensors
from tasklab.tasks import drawn
from tasklab.tasks.suites import suite
from tasklab.tasks.texts import decoded, encoded
from tasklab.tuning.methods import METHODS
from tests import sentences as tiny

ENTRY = zoo.REGISTRY["minilm"]


def pooled(model, ids):
    mask = (ids != 0).long()
    states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def network(state=None):
    torch.manual_seed(0)
    settings = {key: value for key, value in ENTRY.config.items() if key != "max_seq_length"}
    config = BertConfig(**settings, attn_implementation="eager")
    model = BertModel(config, add_pooling_layer=False).eval()
    if state is not None:
        lacks = model.load_state_dict(state, strict=False)
        assert not lacks.missing_keys and all("pool" in x or "ids" in x for x in lacks[1])
    return model


def test_the_architecture_gives_transformers_values_and_gradients():
    model, ours = network(), bert.Bert(ENTRY.config)
    ours.load_state_dict(bert.from_transformers(model.state_dict()))
    ids = torch.zeros(6, 20, dtype=torch.int64)
    for row, length in zip(ids, (3, 20, 7, 11, 15, 4), strict=True):
        row[:length] = torch.randint(5, 30522, (length,))
    wanted, found = pooled(model, ids), ours(ids)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    direction = torch.randn_like(wanted)
    wanted.backward(direction)
    found.backward(direction)
    zeros = {name: torch.zeros_like(x) for name, x in model.named_parameters()}
    slopes = {n: x.grad for n, x in model.named_parameters() if x.grad is not None}
    slopes = bert.from_transformers(zeros | slopes)
    for name, parameter in ours.named_parameters():
        scale = slopes[name].abs().max()
        assert (parameter.grad - slopes[name]).abs().max() <= 1e-5 * scale, name


@pytest.mark.skipif(
    sentences.local(ENTRY) is None, reason="no weights of all-MiniLM-L6-v2 on this machine"
)
def test_the_published_weights_classify_glosses_as_plain_transformers_does():
    """Zero-shot, with transformers' own tokenizer, model and mean."""
    clip, task = loading.load("minilm"), suite("wordnet")["Buildings"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        words = PreTrainedTokenizerFast(
            tokenizer_file=str(sentences.local(ENTRY, sentences.TOKENIZER)), pad_token="[PAD]"
        )
    model = network(read_tensors(sentences.local(ENTRY)))

    @torch.no_grad()
    def embedded(texts):
        about = {"padding": True, "truncation": True, "max_length": 32, "return_tensors": "pt"}
        given = words(texts, **about)
        return torch.nn.functional.normalize(pooled(model, given.input_ids), dim=-1)

    data = drawn.images_of(suite("wordnet")).load("Buildings", "test", n=40)
    texts = embedded(decoded(data.x))
    rows = embedded(task.prompts()).unflatten(0, (len(task.classes), len(task.templates)))
    rows = torch.nn.functional.normalize(rows.mean(1), dim=-1)
    head = heads.start("zero_shot", clip, task)
    with torch.no_grad():
        logits = head(clip.encoder(clip.encoder.params, clip.encoder.preprocess(data.x)))
    torch.testing.assert_close(logits, 20 * texts @ rows.T, atol=1e-4, rtol=1e-4)
    assert (logits.argmax(1) == data.y).float().mean() > 0.35


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("minilm")
    with pytest.MonkeyPatch.context() as patch:
        tiny.tiny(folder, patch)
        yield Lab(
            "minilm", steps=3, store_root=folder / "store", device="cpu", progress=False,
            tasks=["Conditions", "Buildings"],
        )  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_on_texts(lab, method):
    vector = lab.vectors(method, tasks=["Buildings"])["Buildings"]
    assert vector.norm() > 0 and all(x.isfinite().all() for x in vector.values())


def test_a_runs_key_names_all_that_determines_it(lab, monkeypatch):
    key = lab.identity("Buildings")
    assert key["data"].startswith("wordnet-1/Buildings/train/")
    assert key["weights"] == lab.clip.encoder.weights_hash and key["beside"] == lab.clip.beside
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences.Tokenizer, "__init__", cut(sentences.Tokenizer.__init__))
        assert loading.load("minilm").beside != lab.clip.beside


def cut(usual):
    def shorter(self, file, most, name):
        usual(self, file, most - 1, name)

    return shorter


def test_chapters_analyses_run_on_texts(lab):
    """Sums, negation, disentanglement, cosines, cross-task linearity, stitching, merges, probes."""
    methods = ["nonlinear", "posthoc"]
    found = experiments.addition(lab, methods)
    assert set(found["method"]) == set(methods) and found["value"].between(0, 100).all()
    assert not experiments.negation(lab, methods).empty
    assert experiments.disentanglement(lab, methods)["value"].notna().all()
    blocks = experiments.cross_task(lab, ["nonlinear"])["block"].dropna().unique()
    assert sorted(blocks) == [0, 1, 2]
    assert not experiments.stitched_addition(lab, ["nonlinear"]).empty
    assert not experiments.alignment(lab, ["nonlinear"]).empty
    assert experiments.localization(lab)["value"].notna().all()
    probed = lab.sibling(head="probe", tasks=["Conditions", "Buildings"])
    assert not experiments.closed_addition(probed, ["nonlinear"]).empty


def test_a_sum_of_vectors_is_an_edited_model_of_texts(lab):
    vectors = lab.vectors("nonlinear")
    total = TaskVector.sum(vectors.values())
    params = total.apply(lab.clip.encoder.params, 0.3)
    features = lab.clip.encoder(params, lab.clip.encoder.preprocess(encoded(["a tall tower"])))
    assert features.shape == (1, 16) and features.isfinite().all()


def test_a_card_shows_how_texts_are_read(lab, tmp_path, monkeypatch):
    lab.vectors("nonlinear", tasks=["Buildings"])
    run = lab.store.find("finetune", lab.identity("Buildings"))
    folder = exporting.write_run(run, lab.clip.encoder, tmp_path / "card")
    card = (folder / "README.md").read_text("utf-8")
    monkeypatch.chdir(folder)
    found = {}
    exec(card.partition("```python\n")[2].partition("```")[0], found)
    assert found["features"].shape == (2, 16) and "image" not in card


def test_what_is_measured_is_called_texts(lab):
    assert "texts per task: val" in repr(lab)
    found = lab.evaluate(0.3 * lab.vectors("nonlinear")["Buildings"], tasks=["Buildings"])
    for told in (str(found), found._repr_html_(), captions.sample(experiments.single(lab, []))):
        assert "test text" in told and "image" not in told


def test_an_editor_speaks_of_texts(lab):
    content = explore.editor(lab, images=8).payload
    assert content.images.endswith(" validation texts of each task")
