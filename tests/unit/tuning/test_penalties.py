"""Penalties: their gradients in float64, what they do to a run, keys, and where they cannot be."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from torch import nn

from tasklab.evidence.experiments import Lab
from tasklab.mini import clip as mini
from tasklab.models import heads, loading
from tasklab.models.loading import Clip, Encoder
from tasklab.storage.store import Store
from tasklab.tasks import drawn
from tasklab.tasks.suites import OWN, suite
from tasklab.tuning import (
    distillation,
    finetune,
    kronecker,
    memory,
    methods,
    penalties,
    steps,
    tangent,
)
from tasklab.tuning.recipe import FineTune, recipe
from tests import vectors
from tests.helpers import refuses
from tests.vectors import noise, plain

SIZE, COUNT, TASK, OTHERS = 8, 40, "LandCover", ("Signs", "Places", "Scenes")
RUN = FineTune(
    task=TASK, steps=8, batch_size=12, lr=0.02, warmup=2, weight_decay=0.1, checkpoint_every=1
)


def clip_of():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {"layers": 2, "width": 8, "head_width": 4, "patch_size": 4}
        module = mini.build(**shape, image_size=SIZE).visual.double()
        rows = torch.randn(200, module.output_dim, dtype=torch.float64)
    encoder = Encoder.of(module, name="mini", image_size=SIZE)
    preprocess = encoder.preprocess
    object.__setattr__(encoder, "preprocess", lambda x: preprocess(x).double())
    return Clip(encoder=encoder, text=lambda prompts: rows[: len(prompts)], logit_scale=10.0)


@pytest.fixture
def clip():
    return clip_of()


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    def load(self, task, *args, **named):
        generator = torch.Generator().manual_seed(sum(map(ord, task)))
        shape = (COUNT, 3, SIZE, SIZE)
        x = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        return drawn.Images(x, torch.randint(0, 10, (COUNT,), generator=generator))

    monkeypatch.setattr(drawn.DrawnImages, "load", load)
    monkeypatch.setattr(drawn.DrawnImages, "version", lambda self, task, split: f"test {task}")


def run_of(method, **changes):
    more = {"others": OTHERS} if methods.TABLE[method].others else {}
    return dataclasses.replace(RUN, method=method, **{**more, **changes})


def train(config, clip, folder):
    return finetune.finetune(config, clip, Store(folder), progress=False)


def change(clip, scale=0.05):
    return dict(noise(clip.encoder.params, 3, scale))


def other_images():
    return drawn.images_of(suite("mini")).load("Signs", "train").x[:5]


def assert_slope(function, delta, name, gradient, rel=1e-5, step=1e-6):
    """Compare a gradient with finite differences along a random change of one parameter."""
    along = noise({name: delta[name]}, 1, 1.0)[name]
    ends = [float(function({**delta, name: delta[name] + s * along}).value) for s in (step, -step)]
    slope = (ends[0] - ends[1]) / (2 * step)
    assert float((gradient * along).sum()) == pytest.approx(slope, rel=rel, abs=1e-6)


def far_from_one(W):
    G = W @ W.T if len(W) < W.shape[1] else W.T @ W
    return (G - torch.eye(len(G))).norm()


def off_the_diagonal(W):
    G = W.T @ W
    return (G - torch.diag(G.diagonal())).square().sum()


def slopes(f, at, d):
    J = torch.func.jacrev(f)(at)
    return sum(torch.tensordot(J[n], d[n], d[n].dim()) for n in d)


WRITTEN = {  # as papers write them, for `torch.func`
    "tau_jp": lambda f, at, d: slopes(f, at, d).square().sum(1).mean(),
    "ortho_reg": lambda f, at, d: sum(far_from_one(W) for W in d.values() if W.dim() == 2),
    "off_diagonal": lambda f, at, d: sum(
        off_the_diagonal(W) for n, W in d.items() if ".resblocks." in n and W.dim() == 2
    ),
}


@pytest.mark.parametrize("method", WRITTEN)
def test_penalties_and_their_gradients_are_those_of_the_papers_equations(clip, method):
    encoder, delta, images = clip.encoder, change(clip), other_images()
    x, at = encoder.preprocess(images), {n: p.detach() for n, p in encoder.params.items()}
    written = lambda d: WRITTEN[method](lambda p: encoder(p, x), at, d)  # noqa: E731
    with loading.math_attention():
        grads, value = torch.func.grad_and_value(written)(delta)
    for model, size in ((encoder, 5), (encoder, 2), (memory.Recomputed(encoder), 5)):
        found = penalties.measure(method, model, delta, images, size)
        assert float(found.value) == pytest.approx(float(value), rel=1e-9)
        for name, grad in grads.items():
            own = found.gradients.get(name, torch.zeros_like(grad))
            torch.testing.assert_close(own, grad, rtol=1e-8, atol=1e-11)
    if method != "ortho_reg":  # of second or of fourth order in the change
        tripled = {n: 3 * d for n, d in delta.items()}
        tripled = penalties.measure(method, encoder, tripled, images, 5)
        order = {"tau_jp": 2, "off_diagonal": 4}[method]
        assert float(tripled.value) == pytest.approx(3**order * float(value), rel=1e-9)


def test_orthogonal_columns_have_no_penalty_and_all_linear_layers_count(clip):
    delta = change(clip)
    names = methods.matrices(delta)
    assert len(names) == 2 * 4 and all(delta[name].dim() == 2 for name in names)
    assert set(penalties.off_diagonal(delta).gradients) == set(names)
    for name in names:
        tall = len(delta[name]) >= delta[name].shape[1]
        delta[name] = torch.linalg.qr(delta[name])[0] if tall else torch.zeros_like(delta[name])
    assert float(penalties.off_diagonal(delta).value) == pytest.approx(0, abs=1e-20)
    first = delta[names[0]]
    first[:, 1] = first[:, 0]  # two columns that are one: 1 on either side of the diagonal
    assert float(penalties.off_diagonal(delta).value) == pytest.approx(2)


def test_ortho_reg_is_of_all_matrices_that_train_and_has_no_slope_at_its_ends(clip):
    start = penalties.orthonormal({"w": torch.zeros(3, 4), "kernel": torch.ones(2, 1, 2, 2)})
    assert float(start.value) == pytest.approx(3**0.5) and not start.gradients["w"].any()
    end = penalties.orthonormal({"w": torch.eye(3)})
    assert float(end.value) == 0 and not end.gradients["w"].any()  # where a norm has no gradient
    every = penalties.orthonormal(change(clip)).gradients
    assert set(every) == {n for n, x in clip.encoder.params.items() if x.dim() == 2}


def test_every_other_task_has_its_turn():
    data = drawn.images_of(suite("mini"))
    order = lambda step, count: torch.tensor([step])  # noqa: E731
    images = {task: data.load(task, "train").x for task in OTHERS}
    for first in (0, 1, 2, 4):
        steps = range(first, 7)
        seen = list(penalties.turns(OTHERS, data, order, steps, 0, "cpu"))
        assert len(seen) == len(steps)
        for step, x in zip(steps, seen, strict=True):
            assert torch.equal(x[0], images[OTHERS[step % 3]][step])
    assert list(penalties.turns((), data, order, range(2), 0, "cpu")) == [None, None]


def test_what_is_read_once_is_of_other_tasks_or_of_the_reference(clip, monkeypatch):
    data, load, asked = drawn.images_of(suite("mini")), drawn.DrawnImages.load, []

    def told(self, *where, n, **_):
        asked.append((*where, n))
        return load(self, *where)

    monkeypatch.setattr(drawn.DrawnImages, "load", told)
    found = [penalties.known(m, clip.encoder, OTHERS, data) for m in ("tau_jp", "tak", "delta")]
    assert asked == [*((task, "train", 128) for task in OTHERS), ("Objects", "val", 512)]
    assert [one and bool(one.scales) for one in found] == [None, False, True]


def test_keys_have_all_that_matters_and_of_other_methods_are_what_they_were(clip):
    for method in ("nonlinear", "linearized", "attention"):
        found = finetune.identity(recipe("mini", TASK, method), clip)
        assert not {"penalty", "others", "penalty_images"} & found.keys()
    changes = ({}, {"penalty": 1.0}, {"others": OTHERS[::-1]}, {"others": OTHERS[:2]})
    runs = [run_of("tau_jp", **one) for one in changes]
    runs += [run_of("ortho_reg"), run_of("ortho_reg", penalty=0.0), run_of("off_diagonal")]
    keys = {Store().key(finetune.identity(config, clip)) for config in runs}
    assert len(keys) == len(runs)
    old = finetune.identity(run_of("off_diagonal"), clip)  # whose name that was
    assert old["method"] == "ortho_reg" and "penalised" not in old
    for name in ("tak", "delta"):
        variant = finetune.identity(run_of(f"{name}_even"), clip)  # stored runs keep their key
        published = finetune.identity(run_of(name), clip)
        assert variant["method"] == published["method"] == name and "published" not in variant
        assert published["published"] == dataclasses.asdict(methods.TABLE[name].published)
    assert finetune.identity(run_of("tau_jp"), clip)["others"][0] == ["Signs", "test Signs"]
    for method, weight, penalty in (("delta", 1.0, 500.0), ("delta_even", 10.0, 1e-3)):
        key = finetune.identity(run_of(method), clip)
        assert key["teacher"] == [weight, "test Objects", 512] and key["penalty"] == penalty
    assert "teacher" not in finetune.identity(run_of("nonlinear"), clip)


def test_methods_and_their_other_tasks():
    for name, entry in methods.TABLE.items():
        assert bool(entry.penalty) == bool(entry.weight), name
        assert not entry.penalty or entry.penalty in penalties.PENALTIES
        assert not entry.rates or entry.rates in methods.METHODS
    assert set(methods.LINEAR) == {
        "posthoc",
        "linearized",
        "attention_posthoc",
        "tau_jp",
        "tak",
        "tak_even",
    }
    assert methods.METHODS[:3] == ("nonlinear", "linearized", "attention")
    looks = [(one.colour, one.marker) for one in methods.TABLE.values()]
    assert len({c for c, _ in looks}) == len({m for _, m in looks}) == len(looks)
    refuses("'tau_jp' .*'LandCover'", dataclasses.replace, RUN, method="tau_jp")
    lab = Lab(model="mini_xs", steps=1, tasks=TASK, progress=False)
    refuses("at least two tasks", lab.run, TASK, "tau_jp", 0)
    refuses("at least two tasks", recipe, "mini", "mine", "tau_jp", suite=OWN)
    refuses("others must be other tasks than 'LandCover'", run_of, "tau_jp", others=(TASK, "Signs"))
    refuses("'nonlinear' .* tau_jp, tak, tak_even, ortho_reg", run_of, "nonlinear", penalty=1.0)
    refuses("penalty", run_of, "ortho_reg", penalty=-1.0)
    odd = {"features.0.weight": torch.zeros(2, 2)}
    refuses("linear layers .*odd has no", methods.trainable, odd, "off_diagonal", "odd")
    odd = {"kernel": torch.zeros(2, 2, 1, 1)}
    refuses("odd has no", methods.trainable, odd, "ortho_reg", "odd")
    lab = Lab(model="mini_xs", steps=1, tasks=(TASK, "Signs"), progress=False)
    assert lab.run(TASK, "tau_jp", 0).others == ("Signs",)
    assert lab.run(TASK, "ortho_reg", 0).others == ()
    whole = recipe("mini", TASK, "tau_jp")
    assert len(whole.others) == 7 and TASK not in whole.others
    assert whole.lr == recipe("mini", TASK, "linearized").lr


# --- TAK: factors where they are exact; all else is frozen in `test_public.py` --------------------
def stack(*layers):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return plain(nn.Sequential(nn.Flatten(), *layers).double(), image_size=2)


pictures = functools.partial(vectors.pictures, side=2)


def moved(encoder, only=None):
    made = noise(encoder.params, 5, 1.0)
    return {n: made[n] for n in only or made}


def exact(encoder, delta, x):
    return tangent.jvp(encoder, encoder.params, delta, x).jtau.square().sum(1).mean().item()


def of(encoder, delta, *images, **options):
    return float(kronecker.factors(encoder, images, **options).penalty(delta)[0])


def test_factors_are_exact_for_one_layer_or_image():
    encoder, x = stack(nn.Linear(12, 4)), pictures(36)  # more than one pass has
    delta = moved(encoder)
    assert of(encoder, delta, x, draws=None) == pytest.approx(exact(encoder, delta, x), rel=1e-12)
    norm = nn.LayerNorm(5)
    nn.init.constant_(norm.weight, 1.3)
    encoder, x = stack(nn.Linear(12, 5), nn.GELU(), norm, nn.Linear(5, 4)), pictures(1)
    for only in ("1.weight 1.bias", "4.weight 4.bias", "3.weight", "3.bias", "1.bias"):
        delta = moved(encoder, only.split())
        expected = exact(encoder, delta, x)
        assert of(encoder, delta, x, draws=None) == pytest.approx(expected, rel=1e-10)
    x, delta = pictures(36), moved(encoder)
    for made, images in ((kronecker.factors, [x]), (kronecker.corrected, x)):
        for part in (delta, {"3.bias": delta["3.bias"]}):
            few = [made(encoder, images, draws=3, seed=s).penalty(part)[0] for s in range(20)]
            all_ways = made(encoder, images, draws=None).penalty(part)[0]
            assert np.mean(few) == pytest.approx(all_ways.item(), rel=0.15)


def test_factors_are_of_all_layers_of_a_transformer(clip):
    x = drawn.DrawnImages.load(None, "Signs").x[:5]
    found = kronecker.factors(clip.encoder, [x, x.flip(0)])
    delta = {n: torch.ones_like(p) for n, p in clip.encoder.params.items()}
    _, gradients = found.penalty(delta)
    missed = clip.encoder.params.keys() - gradients.keys()
    assert missed == {"class_embedding", "positional_embedding", "conv1.weight"}
    assert {n: g.shape for n, g in gradients.items()} == {n: delta[n].shape for n in gradients}
    value = lambda delta: penalties.curved(delta, found)  # noqa: E731
    for name in ("proj", "ln_post.bias", "transformer.resblocks.0.attn.in_proj_weight"):
        assert_slope(value, delta, name, gradients[name])
    value, gradients = kronecker.corrected(clip.encoder, x).penalty(delta)
    plain = kronecker.factors(clip.encoder, [x]).penalty(delta)[1]
    assert value > 0 and gradients.keys() == plain.keys()
    for name in ("ln_post.bias", "transformer.resblocks.0.ln_1.weight"):
        torch.testing.assert_close(gradients[name], plain[name])


# --- DELTA: EK-FAC factors and a linearized teacher ----------------------------------------------
def test_ek_fac_is_exact_along_each_pair_of_eigenvectors():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder, x = stack(nn.Linear(12, 5), nn.GELU(), nn.Linear(5, 4)), pictures(6)
    found = kronecker.corrected(encoder, x, draws=None)
    for layer, (i, j) in (("3", (3, 5)), ("1", (4, 12)), ("1", (0, 11))):
        weight, bias = f"{layer}.weight", f"{layer}.bias"
        D = torch.outer(found.outputs[weight][:, i], found.inputs[weight][:, j])
        delta = {weight: D[:, :-1], bias: D[:, -1]}
        value, gradients = found.penalty(delta)
        assert float(value) == pytest.approx(exact(encoder, delta, x), rel=1e-10)
        torch.testing.assert_close(gradients[bias], 2 * found.scales[weight][i, j] * D[:, -1])
    # A x B alone is not, where gradients depend on inputs
    assert of(encoder, delta, x, draws=None) != pytest.approx(float(value), rel=1e-2)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_step_of_delta_is_that_of_the_papers_losses(clip, recompute):
    """Both losses written down for `torch.func`, of everything that a step computes."""
    encoder, step = clip.encoder, 5
    config = run_of("delta_even", penalty=0.3)
    a = distillation.coefficient(config, step)
    head = heads.start("zero_shot", clip, suite("mini")[TASK], 0)
    delta, teacher = change(clip), {n: -x for n, x in change(clip, 0.02).items()}
    origin = {n: x.detach() for n, x in encoder.params.items()}
    images, y = other_images(), torch.arange(5)
    x, known = encoder.preprocess(images), kronecker.corrected(encoder, images)
    f = lambda params: encoder(params, x)  # noqa: E731
    loss = lambda features: nn.functional.cross_entropy(head(features), y)  # noqa: E731
    plus = lambda by, d: {n: origin[n] + by * d[n] for n in origin}  # noqa: E731

    def linear(by, t):
        value, slope = torch.func.jvp(f, (origin,), (t,))
        return value + by * slope

    def student(d):
        away = (f(plus(a, d)) - linear(a, teacher)).square().sum(1) / f(origin).square().sum(1)
        return loss(f(plus(1, d))) + 0.3 * known.penalty(d)[0] + 10 * away.mean()

    def taught(t):
        return loss(linear(1, t)) + 0.3 * known.penalty(t)[0]

    named = {distillation.PREFIX + n: t for n, t in teacher.items()}
    problem = steps.Problem(config, head, origin, delta, {})
    one = distillation.Distilled(problem, encoder, known, named, step)
    one._plans = [one.plan._replace(recompute=recompute, size=5 - recompute)]
    value, found = one("a step", images, y, None)
    with loading.math_attention():
        grads, expected = torch.func.grad_and_value(student)(delta)
        grads |= {distillation.PREFIX + n: g for n, g in torch.func.grad(taught)(teacher).items()}
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    torch.testing.assert_close(found, grads, rtol=1e-5, atol=1e-8)
    again = one("a step", images, y, None)[0]  # at the next place of the path
    later = distillation.Distilled(problem, encoder, known, named, step + 1)
    assert again.item() == pytest.approx(later("a step", images, y, None)[0].item())
    assert again.item() != pytest.approx(value.item(), rel=1e-7)
    path = [
        distillation.coefficient(dataclasses.replace(config, seed=seed), step)
        for seed in range(3)
        for step in range(30)
    ]
    assert 0.5 <= min(path) < 0.53 and 0.97 < max(path) <= 1 and len(set(path)) == 90


@pytest.mark.parametrize("recompute", [False, True])
def test_a_step_of_published_delta_is_that_of_its_losses(clip, recompute):
    encoder, step = clip.encoder, 2
    config = run_of("delta", penalty=0.3)
    a, own = distillation.coefficient(config, step), methods.TABLE["delta"].published
    head = heads.start("zero_shot", clip, suite("mini")[TASK], 0)
    names = methods.trainable(encoder.params, "delta", "mini")
    origin = {n: encoder.params[n].detach() for n in names}
    delta = {n: x for n, x in change(clip).items() if n in names}
    teacher = {n: -x for n, x in change(clip, 0.02).items() if n in names}
    images, y = other_images(), torch.arange(5)
    x, known = encoder.preprocess(images), kronecker.corrected(encoder, images, published=own)
    f = lambda params: encoder({**encoder.params, **params}, x)  # noqa: E731
    unit = lambda params: nn.functional.normalize(f(params), dim=1)  # noqa: E731
    loss = lambda features: nn.functional.cross_entropy(head(features), y)  # noqa: E731

    def linear(t):
        value, slope = torch.func.jvp(unit, (origin,), (t,))
        return value + a * slope

    def student(d):
        at = {n: origin[n] + a * d[n] for n in origin}
        away = (unit(at) - linear(teacher)).square().sum(1)
        return loss(f(at)) + 0.3 * known.penalty(d)[0] + away.mean()

    def taught(t):
        return loss(linear(t)) + 0.3 * known.penalty(t)[0]

    named = {distillation.PREFIX + n: t for n, t in teacher.items()}
    problem = steps.Problem(config, head, origin, delta, {})
    one = distillation.Distilled(problem, encoder, known, named, step)
    one._plans = [one.plan._replace(recompute=recompute, size=5 - recompute)]
    value, found = one("a step", images, y, None)
    with loading.math_attention():
        grads, expected = torch.func.grad_and_value(student)(delta)
        grads |= {distillation.PREFIX + n: g for n, g in torch.func.grad(taught)(teacher).items()}
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    torch.testing.assert_close(found, grads, rtol=1e-4, atol=1e-7)


def test_coefficients_are_those_of_recorded_runs():
    config = run_of("delta_even")
    assert [
        distillation.coefficient(dataclasses.replace(config, seed=seed), step)
        for seed, step in ((0, 0), (0, 1), (1, 0))
    ] == pytest.approx([0.748128, 0.878816, 0.549415])


def test_the_path_of_published_delta_grows_to_its_range():
    config = dataclasses.replace(run_of("delta"), steps=400)
    path = [distillation.coefficient(config, step) for step in range(400)]
    assert path[0] == 1 and all(0.75 <= a <= 1.5 for a in path[:100])
    assert min(path) < 0.6 and max(path) > 1.8 and all(0.5 <= a <= 2 for a in path)


def test_published_recipes_train_what_they_penalise(clip):
    tak = methods.TABLE["tak"].published
    x = drawn.DrawnImages.load(None, "Signs").x[:5]
    found = kronecker.factors(clip.encoder, [x], published=tak)
    delta = {n: torch.ones_like(p) for n, p in clip.encoder.params.items()}
    _, gradients = found.penalty(delta)
    for method in ("tak", "delta"):
        assert set(methods.trainable(clip.encoder.params, method, "mini")) == gradients.keys()
    name = "transformer.resblocks.0.attn.in_proj_weight"
    B = found.outputs[name]
    third = len(B) // 3  # queries, keys and values have factors of their own
    assert not B[:third, third:].any() and B[:third, :third].any()
    one = kronecker.factors(clip.encoder, [x[:1]], draws=None, published=tak).blocks
    assert one["class_embedding"].diagonal().min() > 0

    def unit(token):
        params = {**clip.encoder.params, "class_embedding": token}
        return nn.functional.normalize(clip.encoder(params, clip.encoder.preprocess(x[:1])), dim=1)

    J = torch.autograd.functional.jacobian(unit, clip.encoder.params["class_embedding"].detach())[0]
    expected = tak.blocks * J.T @ J
    torch.testing.assert_close(one["class_embedding"], expected, rtol=1e-3, atol=1e-6)


def test_published_recipes_decay_the_change_and_do_not_clip(clip, tmp_path):
    """At a rate too small to learn, weights would shrink by decay; a change of zero stays."""
    still = {"lr": 1e-12, "weight_decay": 1e6, "steps": 2, "penalty": 0.0}
    shared, own = (
        train(run_of(method, **still), clip, tmp_path / method).vector
        for method in ("delta_even", "delta")
    )
    assert own.norm() < 1e-3 * shared.norm()
    assert recipe("mini", TASK, "delta").clip is None
    assert recipe("mini", TASK, "delta").warmup == 60  # 500 of 2,000 steps
    assert recipe("vitb32", TASK, "tak", suite="paper", others=("Cars",)).lr == 3e-4
