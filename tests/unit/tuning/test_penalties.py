"""Penalties: their gradients in float64, what they do to a run, keys, and where they cannot be."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from tasklab.experiments import Lab
from tasklab.mini import clip as mini
from tasklab.models import heads
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
from tests.helpers import refuses
from tests.vectors import noise

SIZE, COUNT, TASK, OTHERS = 8, 40, "LandCover", ("Signs", "Places", "Scenes")
RUN = FineTune(
    task=TASK, steps=8, batch_size=12, lr=0.02, warmup=2, weight_decay=0.1, checkpoint_every=1
)
OWN_OF = {"tau_jp": "linearized", "ortho_reg": "nonlinear", "off_diagonal": "nonlinear"}


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


@pytest.mark.parametrize("method", OWN_OF)
def test_gradients_are_those_of_finite_differences(clip, method):
    delta, x = change(clip), other_images()

    def penalty(delta):
        return penalties.measure(method, clip.encoder, delta, x, len(x))

    found = penalty(delta)
    assert found.value > 0
    for name, gradient in found.gradients.items():
        assert_slope(penalty, delta, name, gradient)


def test_tau_jp_is_the_mean_square_of_j_tau_in_parts_and_recomputed_too(clip):
    delta, x = change(clip), other_images()
    found = penalties.tangent_change(clip.encoder, delta, x)
    jtau = tangent.jvp(clip.encoder, clip.encoder.params, delta, clip.encoder.preprocess(x)).jtau
    assert float(found.value) == pytest.approx(float(jtau.square().sum(1).mean()), rel=1e-10)
    for model, size in ((clip.encoder, 2), (memory.Recomputed(clip.encoder), 5)):
        other = penalties.tangent_change(model, delta, x, size)
        assert float(other.value) == pytest.approx(float(found.value), rel=1e-10)
        for name, gradient in found.gradients.items():
            torch.testing.assert_close(other.gradients[name], gradient, rtol=1e-9, atol=1e-12)


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


def test_ortho_reg_is_the_frobenius_norm_of_the_smaller_side_less_the_identity(clip):
    generator = torch.Generator().manual_seed(0)
    shapes = {"tall": (5, 3), "wide": (2, 4), "bias": (3,), "kernel": (2, 1, 2, 2)}
    delta = {n: torch.randn(s, generator=generator).double() for n, s in shapes.items()}
    found = penalties.orthonormal(delta)
    leaves = {n: delta[n].clone().requires_grad_() for n in ("tall", "wide")}
    sides = leaves["tall"].T @ leaves["tall"], leaves["wide"] @ leaves["wide"].T
    expected = sum((G - torch.eye(len(G))).norm() for G in sides)
    expected.backward()
    assert float(found.value) == pytest.approx(expected.item(), rel=1e-12)
    assert found.gradients.keys() == leaves.keys()
    for name, leaf in leaves.items():
        torch.testing.assert_close(found.gradients[name], leaf.grad)
    start = penalties.orthonormal({"w": torch.zeros(3, 4)})
    assert float(start.value) == pytest.approx(3**0.5) and not start.gradients["w"].any()
    end = penalties.orthonormal({"w": torch.eye(3)})
    assert float(end.value) == 0 and not end.gradients["w"].any()  # where a norm has no gradient
    every = penalties.orthonormal(change(clip)).gradients
    assert set(every) == {n for n, x in clip.encoder.params.items() if x.dim() == 2}
    assert methods.TABLE["ortho_reg"].penalty == "orthonormal"


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
    assert finetune.identity(run_of("tau_jp"), clip)["others"][0] == ["Signs", "test Signs"]
    key = finetune.identity(run_of("delta"), clip)
    assert key["teacher"] == [10.0, "test Objects", 512] and key["penalty"] == 1e-3
    assert "teacher" not in finetune.identity(run_of("nonlinear"), clip)


def test_methods_and_their_other_tasks():
    for name, entry in methods.TABLE.items():
        assert bool(entry.penalty) == bool(entry.weight), name
        assert not entry.penalty or entry.penalty in penalties.PENALTIES
        assert not entry.rates or entry.rates in methods.METHODS
    assert set(methods.LINEAR) == {"posthoc", "linearized", "attention_posthoc", "tau_jp", "tak"}
    assert methods.METHODS[:3] == ("nonlinear", "linearized", "attention")
    looks = [(one.colour, one.marker) for one in methods.TABLE.values()]
    assert len({c for c, _ in looks}) == len({m for _, m in looks}) == len(looks)
    refuses("'tau_jp' .*'LandCover'", dataclasses.replace, RUN, method="tau_jp")
    lab = Lab(model="mini_xs", steps=1, tasks=TASK, progress=False)
    refuses("at least two tasks", lab.run, TASK, "tau_jp", 0)
    refuses("at least two tasks", recipe, "mini", "mine", "tau_jp", suite=OWN)
    refuses("others must be other tasks than 'LandCover'", run_of, "tau_jp", others=(TASK, "Signs"))
    refuses("'nonlinear' .* tau_jp, tak, ortho_reg", run_of, "nonlinear", penalty=1.0)
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


# --- TAK: factors against dense Jacobians --------------------------------------------------------
def stack(*layers):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = Encoder.of(nn.Sequential(nn.Flatten(), *layers).double(), image_size=2)
    object.__setattr__(encoder, "preprocess", lambda x: x)
    return encoder


def pictures(count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 2, 2, generator=draw, dtype=torch.float64)


def moved(encoder, only=None):
    made = noise(encoder.params, 5, 1.0)
    return {n: made[n] for n in only or made}


def exact(encoder, delta, x):
    return tangent.jvp(encoder, encoder.params, delta, x).jtau.square().sum(1).mean().item()


def of(encoder, delta, *images, **options):
    return float(kronecker.factors(encoder, images, **options).penalty(delta)[0])


def test_factors_are_exact_for_one_layer_or_image():
    encoder, x = stack(nn.Linear(12, 4)), pictures(7)
    delta = moved(encoder)
    assert of(encoder, delta, x, draws=None) == pytest.approx(exact(encoder, delta, x), rel=1e-12)
    few = np.mean([of(encoder, delta, x, draws=8, seed=s) for s in range(40)])
    assert few == pytest.approx(exact(encoder, delta, x), rel=0.1)
    encoder, x = stack(nn.Linear(12, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 4)), pictures(1)
    with torch.no_grad():
        encoder.params["3.weight"].mul_(1.3)
    for only in ("1.weight 1.bias", "4.weight 4.bias", "3.weight", "3.bias", "1.bias"):
        delta = moved(encoder, only.split())
        expected = exact(encoder, delta, x)
        assert of(encoder, delta, x, draws=None) == pytest.approx(expected, rel=1e-10)


def test_factors_of_tasks_are_added_as_in_equation_8():
    encoder = stack(nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3))
    one, two = pictures(4), pictures(12, 1)
    each = [kronecker.factors(encoder, [x], draws=None) for x in (one, two)]
    both = kronecker.factors(encoder, [one, two], draws=None)
    for name in ("1.weight", "3.weight"):
        A = (each[0].inputs[name] + 3 * each[1].inputs[name]) / 4  # by numbers of images
        torch.testing.assert_close(both.inputs[name], A)
        B = each[0].outputs[name] + each[1].outputs[name]
        torch.testing.assert_close(both.outputs[name], B)
    delta = moved(encoder, ["3.weight"])
    D = np.concatenate([delta["3.weight"].numpy(), np.zeros((3, 1))], 1).ravel()
    assert float(both.penalty(delta)[0]) == pytest.approx(np.kron(B, A).dot(D).dot(D))


def test_factors_are_of_all_layers_of_a_transformer():
    clip = clip_of()
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
    clip = clip_of()
    x = drawn.DrawnImages.load(None, "Signs").x[:5]
    delta = {n: torch.ones_like(p) for n, p in clip.encoder.params.items()}
    value, gradients = kronecker.corrected(clip.encoder, x).penalty(delta)
    plain = kronecker.factors(clip.encoder, [x]).penalty(delta)[1]
    assert value > 0 and gradients.keys() == plain.keys()
    for name in ("ln_post.bias", "transformer.resblocks.0.ln_1.weight"):
        torch.testing.assert_close(gradients[name], plain[name])


# --- DELTA: EK-FAC factors and a linearized teacher ----------------------------------------------
def test_ek_fac_is_exact_along_each_pair_of_eigenvectors():
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
def test_a_student_follows_its_teacher_and_not_the_other_way(clip, recompute):
    encoder, a = clip.encoder, 0.7
    config = run_of("delta")
    head = heads.start("zero_shot", clip, suite("mini")[TASK], 0)
    delta, teacher = change(clip), {n: -x for n, x in change(clip, 0.02).items()}
    origin = {n: x.detach() for n, x in encoder.params.items()}
    problem = steps.Problem(config, head, origin, delta, {})
    x, y = encoder.preprocess(other_images()), torch.arange(5)
    model = memory.Recomputed(encoder) if recompute else encoder
    value, found = distillation.distance(problem, model, model, teacher, a, x, y)
    known = tangent.jvp(encoder, origin, teacher, x)

    def far(delta):
        moved = {n: origin[n] + a * delta[n] for n in origin}
        away = encoder({**encoder.params, **moved}, x) - known.at(a)
        share = away.square().sum(1) / known.f0.square().sum(1)
        size = methods.TABLE["delta"].teacher * share.mean()
        return penalties.Penalty(size.detach(), {})

    assert float(value) == pytest.approx(float(far(delta).value), rel=1e-6)
    loss = lambda f: nn.functional.cross_entropy(head(f), y)  # noqa: E731
    _, own = tangent.value_and_grad(encoder, origin, teacher, x, loss)
    for name in ("proj", "ln_post.bias", "transformer.resblocks.1.mlp.c_fc.weight"):
        assert_slope(far, delta, name, found[name], rel=1e-4)
        torch.testing.assert_close(found[distillation.PREFIX + name], own[name])
