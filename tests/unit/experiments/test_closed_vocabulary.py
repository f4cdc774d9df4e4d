"""Probes, regimes and subsets against closed forms and slow loops, in float64."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from tasklab.bench.parameters import Parameters
from tasklab.models import heads, zoo
from tasklab.tasks import drawn, suites
from tasklab.tuning import finetune, probes
from tasklab.tuning import recipe as config
from tasklab.tuning.recipe import FineTune, Probe, recipe
from tests.helpers import refuses
from tests.tinyclip import SIZE, tiny

COUNT, TASK = 40, "LandCover"


@pytest.fixture
def clip():
    return tiny()


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    shape = (COUNT, 3, SIZE, SIZE)
    x = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    images = drawn.Images(x, torch.randint(0, 10, (COUNT,), generator=generator))
    cut = lambda *args, n=None, **kwargs: drawn.Images(images.x[:n], images.y[:n])  # noqa: E731
    monkeypatch.setattr(drawn.DrawnImages, "load", cut)
    monkeypatch.setattr(drawn.DrawnImages, "version", lambda *args, **kwargs: "test")
    monkeypatch.setattr(drawn.DrawnImages, "size", lambda *args, **kwargs: COUNT)
    return images


# --- configurations -------------------------------------------------------------------------------
def test_the_probe_counts_where_it_is_used_and_separates():
    other = Probe(solver="lbfgs")
    for head in ("zero_shot", "trained", "zero_shot_trained"):
        one = FineTune(task=TASK, head=head)
        assert one.identity() == dataclasses.replace(one, probe=other).identity()
        assert "probe" not in one.identity()
    one = FineTune(task=TASK, head="probe")
    assert one.identity() != dataclasses.replace(one, probe=other).identity()
    # what L-BFGS does not look at changes nothing
    assert other.identity() == dataclasses.replace(other, lr=0.1, steps=3).identity()
    torch.manual_seed(0)
    y = torch.arange(40) % 4
    x = F.one_hot(y, 6).float() + 0.1 * torch.randn(40, 6)
    probe = probes.adamw(x, y, classes=5, lr=0.1, steps=200, batch_size=64)
    assert heads.accuracy(probe(x), y) == 1.0 and probe.weight.shape == (5, 6)
    refuses("at least one", lambda: probes.adamw(x[:0], torch.arange(0), classes=2, lr=0.1))


def test_regimes_are_methods_with_heads():
    run = recipe("mini", TASK, "nonlinear")
    assert (run.head, "head" in run.identity()) == ("zero_shot", False)
    assert recipe("mini", TASK, "full").head == "zero_shot_trained"
    assert recipe("mini", TASK, "full", head="probe").head == "trained"
    closed = recipe("mini_sup_few", TASK, "nonlinear")
    assert closed.head == "trained"
    together = recipe("mini_sup_few", TASK, "full", head="probe")
    assert (together.method, together.head) == ("nonlinear", "trained")
    first = recipe("mini_sup_few", TASK, "nonlinear", head="probe")
    assert (first.head, first.probe) == ("probe", Probe(lr=config.PROBE_LR))
    paper = recipe("vitb16_in1k", TASK, "nonlinear", head="probe")
    assert (paper.probe.solver, paper.probe.steps, paper.probe.batch_size) == ("adamw", 2000, 128)
    assert paper.probe.lr is None and paper.lr is None  # searched: appendix C
    assert recipe("vitb16_in1k", TASK, "full", head="probe").lr is None


def test_rates_keep_to_their_vocabulary_and_heads(monkeypatch):
    rates = {"nonlinear": 0.1, "linearized": 0.3, "full": 0.2}
    entry = dataclasses.replace(zoo.REGISTRY["mini"], closed_rates=rates)
    monkeypatch.setitem(zoo.REGISTRY, "mini", entry)
    assert recipe("mini", TASK, "nonlinear").lr == zoo.MINI_LR["nonlinear"]
    assert recipe("mini", TASK, "nonlinear", head="probe").lr == 0.1
    assert recipe("mini", TASK, "full", head="probe").lr == 0.2
    assert recipe("mini", TASK, "linearized", head="probe").lr == 0.3
    assert recipe("mini", TASK, "attention", head="probe").lr == zoo.MINI_LR["attention"]
    joint = recipe("mini_sup_few", TASK, "full", head="probe").lr
    probed = recipe("mini_sup_few", TASK, "nonlinear", head="probe").lr
    assert joint != probed
    assert recipe("mini_sup_few", TASK, "nonlinear").lr == joint
    assert recipe("mini_sup_few", TASK, "full").lr == joint
    linearized = recipe("mini_sup_few", TASK, "linearized").lr
    far = zoo.MINI_LR["linearized"] / zoo.MINI_LR["nonlinear"]
    assert linearized == pytest.approx(far * joint)
    kind = lambda **more: Parameters(device="cpu", **more).vocabulary  # noqa: E731
    assert kind() == "open" and kind(head="probe") == "closed"
    assert kind(model="mini_sup_few") == "closed"
    refuses("no text tower", Parameters, model="mini_sup_few", head="zero_shot", device="cpu")
    refuses("head", Parameters, head="prob", device="cpu")
    refuses("head='trained'", FineTune, task=TASK, method="full")


@pytest.mark.parametrize("kind", ["few", "many", "mae", "dino", "clip_more"])
def test_methods_keep_their_distance_from_the_rate_that_was_searched(kind):
    searched = recipe(f"mini_{kind}", TASK, "nonlinear", head="probe").lr
    for method, rate in zoo.MINI_LR.items():
        scaled = rate * searched / zoo.MINI_LR["nonlinear"]
        assert recipe(f"mini_{kind}", TASK, method, head="probe").lr == pytest.approx(scaled)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"solver": "sgd"}, "adamw"), ({"steps": 0}, "steps"), ({"lr": -1.0}, "lr")],
)
def test_impossible_probes(change, message):
    refuses(message, Probe, **change)


# --- probes ---------------------------------------------------------------------------------------
def test_both_solvers_from_the_store(clip, store, few_images, monkeypatch):
    suite = suites.suite()
    x = clip.encoder.preprocess(few_images.x)
    features = clip.encoder(clip.encoder.params, x).float()
    exact = probes.fit(Probe(solver="lbfgs"), clip, suite, TASK, store)
    expected = heads.linear_probe(features, few_images.y, classes=10, decay=1e-5)
    torch.testing.assert_close(exact.head.weight, expected.weight, rtol=1e-5, atol=1e-5)
    assert exact.lr == 0 and exact.seconds_features > 0 and exact.seconds_fit > 0
    given = probes.fit(Probe(lr=0.03, steps=30), clip, suite, TASK, store)
    expected = probes.adamw(features, few_images.y, classes=10, lr=0.03, steps=30)
    torch.testing.assert_close(given.head.weight, expected.weight, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(probes, "_solve", None)
    again = probes.fit(Probe(lr=0.03, steps=30), clip, suite, TASK, store)
    assert torch.equal(again.head.weight, given.head.weight)
    assert again.seconds_fit == given.seconds_fit


def test_fewer_images_and_searched_rates(clip, store, few_images):
    suite, how = suites.suite(), Probe(steps=20, batch_size=8)
    assert probes.searched_task(suite) == "Vehicles"
    found = probes.search(how, clip, suite, store)
    assert tuple(found) == probes.RATES
    fitted = probes.fit(how, clip, suite, TASK, store)
    assert fitted.lr == probes.best_rate(found)
    other = dataclasses.replace(how, lr=0.1)
    keys = {store.key(probes.identity(p, clip, suite, TASK)) for p in (how, other)}
    assert len(keys) == 2
    suite, how = suites.suite(), Probe(solver="lbfgs", images=11)
    found = probes.fit(how, clip, suite, TASK, store)
    features = clip.encoder({}, clip.encoder.preprocess(few_images.x[:11])).float()
    expected = heads.linear_probe(features, few_images.y[:11], classes=10, decay=1e-5)
    torch.testing.assert_close(found.head.weight, expected.weight, rtol=1e-5, atol=1e-5)


# --- fine-tuning with these heads -----------------------------------------------------------------


RUN = FineTune(task=TASK, steps=8, batch_size=16, lr=0.02, warmup=2, weight_decay=0.3, head="probe")


def reference(run, clip, images, head, learns):
    encoder = clip.encoder
    theta = {name: tensor.clone().requires_grad_() for name, tensor in encoder.params.items()}
    weight = head.weight.clone().requires_grad_(learns)
    moving = [*theta.values(), *([weight] if learns else [])]
    betas = (run.beta1, run.beta2)
    optimiser = torch.optim.AdamW(moving, betas=betas, weight_decay=run.weight_decay)
    for step in range(run.steps):
        optimiser.param_groups[0]["lr"] = finetune.learning_rate(run, step)
        index = finetune.batch(run, step, COUNT)
        features = functional_call(encoder.module, theta, (encoder.preprocess(images.x[index]),))
        logits = dataclasses.replace(head, weight=weight)(features)
        optimiser.zero_grad()
        F.cross_entropy(logits, images.y[index]).backward()
        nn.utils.clip_grad_norm_(moving, run.clip)
        optimiser.step()
    return {n: t.detach() - encoder.params[n] for n, t in theta.items()}, weight.detach()


def test_the_probe_stays_as_it_was(clip, store, few_images):
    found = finetune.finetune(RUN, clip, store, progress=False)
    probe = probes.fit(RUN.probe, clip, suites.suite(), TASK, store).head
    expected, _ = reference(RUN, clip, few_images, probe, learns=False)
    assert found.vector.keys() == expected.keys()
    for name, tensor in expected.items():  # the probe's float32 is what both have
        torch.testing.assert_close(found.vector[name], tensor, rtol=1e-4, atol=1e-6)
    assert torch.equal(found.head.weight, probe.weight)
    assert torch.equal(found.head.bias, probe.bias) and not found.head.normalise
    again = finetune.finetune(RUN, clip, store, progress=False)
    assert torch.equal(again.head.weight, probe.weight)
    assert found.record["parameters"] == sum(p.numel() for p in clip.encoder.params.values())


def test_the_zero_shot_head_trains_along(clip, store, few_images):
    run = dataclasses.replace(RUN, head="zero_shot_trained")
    found = finetune.finetune(run, clip, store, progress=False)
    start = heads.zero_shot(clip, suites.suite()[TASK])
    expected, weight = reference(run, clip, few_images, start, learns=True)
    for name, tensor in expected.items():
        torch.testing.assert_close(found.vector[name], tensor, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(found.head.weight, weight, rtol=1e-9, atol=1e-11)
    assert (found.head.weight - start.weight).norm() > 1e-3
    assert found.head.normalise and found.head.bias is None


def test_heads_and_probes_have_keys_of_their_own(clip, store):
    changes = [{"head": head} for head in ("zero_shot", "trained", "zero_shot_trained")]
    changes += [{}, {"probe": Probe(solver="lbfgs")}, {"probe": Probe(lr=0.1)}]
    runs = [dataclasses.replace(RUN, **change) for change in changes]
    assert len({store.key(finetune.identity(run, clip)) for run in runs}) == 6
