"""The text world and the small T5: deterministic, balanced, disjoint, and exact derivatives."""

import random
import re

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call
from transformers import T5ForConditionalGeneration

from pretraining import t5 as pretrain_t5
from tasklab import architectures
from tasklab.mini import lexicon, t5
from tasklab.mini import text as world
from tasklab.models import zoo
from tasklab.tasks.suites import Task
from tasklab.tuning import tangent
from tests.helpers import refuses

NAMES = [task["name"] for task in world.TEXT_TASKS]
CLASSES = {task["name"]: task["classes"] for task in world.TEXT_TASKS}


def test_the_catalog_words_and_answers():
    tasks = [Task(**entry) for entry in world.TEXT_TASKS]
    assert [task.name for task in tasks if task.control] == ["Cloze"]
    assert len(tasks) >= 5
    for task in tasks:
        for word in task.classes:
            assert len(lexicon.encode(word)) == 2  # the word and the end mark
            assert lexicon.UNK not in lexicon.encode(word)
    texts, labels = world.write("Topics", "val", 400)
    right = 0
    for text, label in zip(texts, labels, strict=True):
        counts = [sum(w in nouns for w in text.split()) for nouns in lexicon.TOPICS.values()]
        right += counts[label] == max(counts)
    assert 0.85 < right / len(texts) < 1
    refuses("did you mean 'Reviews'", world.sample_text, "Review", "val", 8)
    refuses("did you mean 'test'", world.sample_text, "Reviews", "tests", 8)
    refuses("zzz", lambda: t5.text(t5.build_t5(), ("yes", "zzz")))
    config = t5.t5_config()
    config.tie_word_embeddings = False
    refuses("t5-v1_1", lambda: architectures.FirstToken(T5ForConditionalGeneration(config)))


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_balanced_and_splits_share_none(name):
    classes = len(CLASSES[name])
    ids, labels = world.sample_text(name, "val", 8 * classes)
    again, same = world.sample_text(name, "val", 8 * classes)
    assert ids.shape == (8 * classes, lexicon.LENGTH) and ids.dtype == labels.dtype == torch.int64
    assert torch.equal(ids, again) and torch.equal(labels, same)
    assert torch.bincount(labels, minlength=classes).tolist() == [8] * classes
    assert not torch.equal(labels, labels.sort().values)
    parts = [set(world.write(name, split, 300)[0]) for split in world.SPLITS]
    assert len(set.union(*parts)) == sum(map(len, parts)) and min(map(len, parts)) > 270
    for text in set.union(*parts):
        assert set(text.split()) <= set(lexicon.vocabulary())
        assert len(lexicon.encode(text)) <= lexicon.LENGTH


def solve_reviews(text):
    said = text.split(" : ")[1].removesuffix(" . sentiment ?")
    total, factor, degree = 0.0, 1.0, 1.0
    for word in said.split():
        if word == "but":
            factor = 1.5
        elif word in ("and", "."):
            factor = 1.0
        degree = lexicon.DEGREES.get(word, degree)
        if word in lexicon.VERDICTS:
            total, degree = total + factor * degree * lexicon.VERDICTS[word], 1.0
    return "positive" if total > 0 else "negative"


def solve_questions(text):
    keeps = re.search(r"(\w+) keeps an? (\w+) \.", text)
    if keeps:
        right = lexicon.ANIMALS[keeps[2]][2]
    else:
        thing = re.search(re.search(r"where is (\w+) \?", text)[1] + r" has the (\w+) \.", text)[1]
        right = re.search(rf"the {thing} is in the (\w+) \.", text)[1]
    return re.search(rf"(\(\w\)) {right}( |$)", text)[1]


def solve_reading(text):
    thing = re.search(r"is the (\w+) \?", text)[1]
    return re.search(rf"\ban? (\w+) {thing} ", text)[1]


def solve_entailment(text):
    thing, colour = re.search(r"hypothesis : the (\w+) is (\w+) \.", text).groups()
    said = re.search(rf"\ban? (\w+) {thing} \.", text)[1]
    return "maybe" if said in lexicon.STATES else "yes" if said == colour else "no"


def solve_counting(text):
    thing = re.search(r"named (\w+) are", text)[1]
    return lexicon.NUMBERS[text.split("?")[1].split().count(thing) - 1]


def solve_cloze(text):
    told = set(text.split(" ___ . ")[1].split()) & set().union(*lexicon.ANIMALS.values())
    fits = [animal for animal, traits in lexicon.ANIMALS.items() if told <= set(traits)]
    return fits[0] if len(fits) == 1 else "?"


SOLVERS = {
    "Reviews": solve_reviews, "Questions": solve_questions, "Reading": solve_reading,
    "Entailment": solve_entailment, "Counting": solve_counting, "Cloze": solve_cloze,
}  # fmt: skip


@pytest.mark.parametrize("name", SOLVERS)
def test_labels_follow_from_the_text(name):
    texts, labels = world.write(name, "val", 300)
    assert [SOLVERS[name](text) for text in texts] == [CLASSES[name][y] for y in labels]


def test_tokens_come_back_behind_their_sentinels():
    ids = [lexicon.encode(text) for text in ("the film", "the zzz film .")]
    known = lexicon.vocabulary()
    assert ids[0] == [known["the"], known["film"], lexicon.EOS]
    assert ids[1] == [known["the"], lexicon.UNK, known["film"], known["."], lexicon.EOS]
    refuses("50 tokens", lambda: lexicon.encode("the " * 49))
    rng = random.Random(0)
    for _ in range(200):
        words = rng.choice(pretrain_t5.STORIES)(rng).split()
        left, gone = pretrain_t5.hide(rng, words)
        spans = dict(
            (part.split()[0], part.split()[1:])
            for part in re.split(r"(?=<extra_id_\d>)", gone)
            if part
        )
        back = [w for word in left.split() for w in spans.get(word, [word])]
        assert back == words
        assert 0.1 < sum(map(len, spans.values())) / len(words) < 0.5


def test_the_stream_is_reproducible_known_and_worded_otherwise():
    ids, targets = pretrain_t5.stream(0, 3, 512, 32)
    again = pretrain_t5.stream(0, 3, 512, 32)
    assert torch.equal(ids, again[0]) and torch.equal(targets, again[1])
    assert not torch.equal(ids, pretrain_t5.stream(0, 4, 512, 32)[0])
    assert not (ids == lexicon.UNK).any() and not (targets == lexicon.UNK).any()
    assert ((targets == lexicon.EOS).sum(1) == 1).all()  # none was cut
    lengths = (ids != 0).sum(1).view(-1, 32)
    assert (lengths.amax(1) - lengths.amin(1)).float().mean() < 3
    streamed = {tuple(row) for row in ids.tolist()}
    for name in NAMES:
        assert not streamed & {
            tuple(row) for row in world.sample_text(name, "val", 300)[0].tolist()
        }


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    model = t5.build_t5().double().eval().requires_grad_(False)
    params = {n: p + 0.02 * torch.randn_like(p) for n, p in model.named_parameters()}
    ids, labels = world.sample_text("Cloze", "val", 3)
    return model, params, ids, labels


def test_features_and_losses_are_those_of_transformers():
    torch.manual_seed(0)
    whole = T5ForConditionalGeneration(t5.t5_config()).eval()
    ids, _ = world.sample_text("Questions", "val", 8)
    start = torch.zeros(8, 1, dtype=torch.int64)
    with torch.no_grad():
        out = whole(input_ids=ids, attention_mask=(ids != 0).long(), decoder_input_ids=start)
        expected, parts = out.logits[:, 0], dict(whole.named_parameters())
        model = architectures.FirstToken(whole).eval()
        torch.testing.assert_close(model.logits(model(ids)), expected, rtol=1e-4, atol=1e-4)
        words = CLASSES["Questions"]
        columns = [lexicon.vocabulary()[word] for word in words]
        found = model(ids) @ t5.text(model, words).T
        torch.testing.assert_close(found, expected[:, columns], rtol=1e-4, atol=1e-4)
    assert set(dict(model.named_parameters())) == set(parts)
    torch.manual_seed(0)
    whole = T5ForConditionalGeneration(t5.t5_config()).eval()
    ids, targets = pretrain_t5.stream(0, 0, 16, 16)
    with torch.no_grad():
        marked = targets.masked_fill(targets == 0, -100)
        expected = whole(input_ids=ids, attention_mask=(ids != 0).long(), labels=marked).loss
        ours = pretrain_t5.written_loss(architectures.FirstToken(whole), ids, targets)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_each_parameter_has_one_name_and_every_use_goes_through_it(small):
    model, params, ids, _ = small
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert len(names) == len(set(names)) == len(params)
    assert [name for name in names if "embed_tokens" in name or "lm_head" in name] == []
    known = lexicon.vocabulary()

    def moved(token):
        table = params["shared.weight"].clone()
        table[token] += 0.1
        new = functional_call(model, {**params, "shared.weight": table}, (ids,))
        return not torch.equal(new, functional_call(model, params, (ids,)))

    assert moved(ids[0, 0].item())  # read by the encoder
    assert moved(lexicon.PAD)  # the decoder's start; the encoder's padding is masked
    assert not moved(known["sentiment"])  # not in these texts
    reference = t5.build_t5().double().eval()
    reference.load_state_dict(params)
    torch.testing.assert_close(reference(ids), functional_call(model, params, (ids,)))


def test_padding_changes_nothing_and_blocks_are_in_order(small):
    model, params, ids, _ = small
    length = int((ids[0] != 0).sum())
    alone = functional_call(model, params, (ids[:1, :length],))
    padded = functional_call(model, params, (ids,))[:1]
    torch.testing.assert_close(alone, padded, rtol=0, atol=1e-12)
    model = t5.build_t5()
    pattern = zoo.spec("mini_t5").block
    names = [name for name, _ in model.named_modules() if re.fullmatch(pattern, name)]
    expected = [f"encoder.block.{i}" for i in range(3)] + [f"decoder.block.{i}" for i in range(2)]
    assert names == expected


def test_linearized_values_and_gradients(small):
    model, params, ids, labels = small
    tau = {name: 0.02 * torch.randn_like(p) for name, p in params.items()}
    head = t5.text(model, CLASSES["Cloze"])

    def encoder(p, x):
        return functional_call(model, dict(p), (x,))

    def loss(features):
        return F.cross_entropy(features @ head.T, labels)

    values = tangent.jvp(encoder, params, tau, ids)
    step = 1e-6  # so small that no ReLU turns on or off in between

    def at(h):
        return encoder({name: params[name] + h * tau[name] for name in tau}, ids)

    slope = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
    size = slope.abs().max()
    torch.testing.assert_close(values.jtau / size, slope / size, rtol=0, atol=1e-7)

    leaves = {name: t.clone().requires_grad_() for name, t in tau.items()}
    f0, jtau = torch.func.jvp(lambda p: encoder(p, ids), (params,), (leaves,))
    expected = torch.autograd.grad(loss(f0 + jtau), list(leaves.values()))
    _, grads = tangent.value_and_grad(encoder, params, tau, ids, loss)
    for name, grad in zip(leaves, expected, strict=True):
        bound = 1e-10 * max(1.0, grad.abs().max().item())
        torch.testing.assert_close(grads[name], grad, rtol=0, atol=bound)
