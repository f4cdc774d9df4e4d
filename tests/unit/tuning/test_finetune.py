"""Fine-tuning against slow, obvious loops in float64; names; interruption; failures."""

import dataclasses
import os
import signal

import open_clip
import pytest
import torch
from torch import nn
from torch.func import functional_call, jvp
from torch.utils._python_dispatch import TorchDispatchMode

from tasklab import machine
from tasklab.models import heads, zoo
from tasklab.models.loading import Clip, Encoder
from tasklab.storage import termination
from tasklab.storage.store import Store
from tasklab.tasks import drawn, suites
from tasklab.tuning import finetune, footprint, methods, session
from tasklab.tuning import steps as stepping
from tasklab.tuning.memory import Recomputed
from tasklab.tuning.methods import METHODS
from tasklab.tuning.recipe import FineTune
from tests.helpers import refuses
from tests.tinyclip import SIZE, WIDTH, Affine, Curved, text, tiny

COUNT, TASK = 50, "LandCover"
RUN = FineTune(
    task=TASK, steps=12, batch_size=16, lr=0.05, warmup=3, weight_decay=0.3, checkpoint_every=1
)


def images_of():
    generator = torch.Generator().manual_seed(1)
    shape = (COUNT, 3, SIZE, SIZE)
    x = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return drawn.Images(x, torch.randint(0, 10, (COUNT,), generator=generator))


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    images = images_of()
    monkeypatch.setattr(drawn.DrawnImages, "load", lambda *args, **kwargs: images)
    monkeypatch.setattr(drawn.DrawnImages, "version", lambda *args, **kwargs: "test")
    return images


def train(config, clip, store):
    return finetune.finetune(config, clip, store, progress=False)


@pytest.fixture(scope="module")
def in_one(tmp_path_factory):
    """Return a function that trains in one piece, once for all tests of one kind of run."""
    store = Store(tmp_path_factory.mktemp("whole"))
    return lambda config, clip: train(config, clip, store)


def reference(config, clip, images, model):
    encoder = clip.encoder
    head = heads.zero_shot(clip, suites.suite()[TASK])
    theta = {name: tensor.clone().requires_grad_() for name, tensor in encoder.params.items()}
    more = {"betas": (config.beta1, config.beta2), "weight_decay": config.weight_decay}
    optimiser = torch.optim.AdamW(theta.values(), **more)
    for step in range(config.steps):
        for group in optimiser.param_groups:
            group["lr"] = finetune.learning_rate(config, step)
        index = finetune.batch(config, step, COUNT)
        features = model(theta, encoder.preprocess(images.x[index]))
        loss = nn.functional.cross_entropy(head(features), images.y[index])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(theta.values(), config.clip)
        optimiser.step()
    return {name: tensor.detach() - encoder.params[name] for name, tensor in theta.items()}


def assert_same(vector, expected):
    torch.testing.assert_close(vector, expected, rtol=1e-9, atol=1e-11)


def test_the_plain_run_is_adamw_on_theta(store, few_images):
    clip = tiny(Curved)
    module = clip.encoder.module
    expected = reference(RUN, clip, few_images, lambda p, x: functional_call(module, p, (x,)))
    run = train(RUN, clip, store)
    assert_same(run.vector, expected)
    assert run.vector.norm() > 0.1 and len(run.record["losses"]) == RUN.steps
    assert run.record["losses"][-1] < run.record["losses"][0]
    assert run.record["parameters"] == sum(p.numel() for p in module.parameters())
    before = tiny(Curved).encoder.params
    assert all(torch.equal(before[name], tensor) for name, tensor in clip.encoder.params.items())


def test_the_linearized_run_is_adamw_on_theta(store, few_images):
    """Differentiates through the forward-mode pass, as the papers' listing does."""
    clip = tiny(Curved)
    encoder = clip.encoder

    def linearized(theta, x):
        delta = {name: theta[name] - encoder.params[name] for name in theta}
        call = lambda params: functional_call(encoder.module, params, (x,))  # noqa: E731
        value, change = jvp(call, (encoder.params,), (delta,))
        return value + change

    config = dataclasses.replace(RUN, method="linearized")
    run = train(config, clip, store)
    assert_same(run.vector, reference(config, clip, few_images, linearized))
    plain = train(RUN, clip, store)  # on a curved model the two differ
    assert (run.vector - plain.vector).norm() > 1e-3


def test_linearized_equals_plain_where_affine_and_decay_pulls_theta(store, few_images):
    clip = tiny(Affine)
    plain = train(RUN, clip, store)
    linearized = train(dataclasses.replace(RUN, method="linearized"), clip, store)
    assert_same(linearized.vector, plain.vector)
    assert linearized.record["losses"] == pytest.approx(plain.record["losses"], rel=1e-10)
    # With a gradient of almost nothing, theta shrinks by (1 - rate x decay) a step.
    config = dataclasses.replace(RUN, lr=0.01, beta1=0.0)
    clip = dataclasses.replace(tiny(Affine), logit_scale=0.0)
    shrunk = 1.0
    for step in range(config.steps):
        shrunk *= 1 - finetune.learning_rate(config, step) * config.weight_decay
    vector = train(config, clip, store).vector
    assert_same(vector, {n: t * (shrunk - 1) for n, t in clip.encoder.params.items()})


class Reads(TorchDispatchMode):
    """Counts how often a number is read from a tensor, which waits for a GPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("head", ["zero_shot", "trained"])
@pytest.mark.parametrize("method", ["nonlinear", "linearized"])
def test_no_step_reads_a_number_from_the_device(tmp_path, monkeypatch, transformer, method, head):
    module = transformer.encoder.module.float()  # oneDNN's convolution, which a mode sees, has it
    encoder = Encoder.of(module, name="mini", image_size=SIZE)
    transformer = dataclasses.replace(transformer, encoder=encoder)
    usual, device = session.Journal, torch.device("cuda")
    monkeypatch.setattr(session, "Journal", lambda *args: usual(*args[:-1], device))
    config = dataclasses.replace(RUN, method=method, head=head, checkpoint_every=100)
    counts = []
    for steps in (2, 6):
        with Reads() as reads:
            run = train(dataclasses.replace(config, steps=steps), transformer, Store(tmp_path))
        counts.append(reads.count)
        assert len(run.record["losses"]) == steps
    assert counts[1] <= counts[0]  # the first run reads whether prompts are finite, too


class KilledError(Exception):
    """Stands for a power cut."""


def kill_at(monkeypatch, step):
    preprocess, steps = Encoder.preprocess, []

    def cut(self, x):
        steps.append(len(x))
        if len(steps) == step + 1:
            raise KilledError
        return preprocess(self, x)

    monkeypatch.setattr(Encoder, "preprocess", cut)
    return steps


@pytest.mark.parametrize("method", ["nonlinear", "linearized"])
@pytest.mark.parametrize("killed_at", [1, 5, 11])
def test_a_resumed_run_ends_bit_for_bit_the_same(tmp_path, monkeypatch, method, killed_at, in_one):
    config = dataclasses.replace(RUN, method=method)
    monkeypatch.setattr(session, "_REST", 0)
    whole = in_one(config, tiny(Curved))
    store, clip, steps = Store(tmp_path / "cut"), tiny(Curved), kill_at(monkeypatch, killed_at)
    with pytest.raises(KilledError):
        train(config, clip, store)
    resumed = train(config, clip, store)
    assert len(steps) == 1 + config.steps  # nothing was done twice, but for the step that was cut
    assert resumed.vector == whole.vector
    assert resumed.record["losses"] == whole.record["losses"]


def test_a_run_goes_on_with_the_threads_that_it_began_with(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "_REST", 0)
    usual, seen, learning_rate = torch.get_num_threads(), [], finetune.learning_rate
    config = dataclasses.replace(RUN, steps=4)

    def spied(config, step):
        seen.append(torch.get_num_threads())
        return learning_rate(config, step)

    monkeypatch.setattr(finetune, "learning_rate", spied)
    try:
        torch.set_num_threads(2)
        whole = train(config, tiny(Curved), Store(tmp_path / "whole"))
        store, clip, steps = Store(tmp_path / "cut"), tiny(Curved), kill_at(monkeypatch, 2)
        with pytest.raises(KilledError):
            train(config, clip, store)
        torch.set_num_threads(1)
        resumed = train(config, clip, store)
        assert torch.get_num_threads() == 1  # again
    finally:
        torch.set_num_threads(usual)
    assert len(steps) == 1 + config.steps and set(seen) == {2}
    assert resumed.record["threads"] == 2 and resumed.vector == whole.vector


def test_sigterm_leaves_a_checkpoint_of_the_present_step(tmp_path, monkeypatch, caplog, in_one):
    store, rate = Store(tmp_path / "cut"), finetune.learning_rate

    def asked(config, step):
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return rate(config, step)

    with monkeypatch.context() as told, pytest.raises(termination.Terminated) as ended:
        told.setattr(finetune, "learning_rate", asked)
        train(RUN, tiny(Curved), store)
    assert ended.value.code == 143
    assert f"5 of {RUN.steps} steps are kept" in caplog.text
    steps = kill_at(monkeypatch, 1000)
    resumed = train(RUN, tiny(Curved), store)
    assert len(steps) == RUN.steps - 5
    assert resumed.vector == in_one(RUN, tiny(Curved)).vector


def test_a_finished_run_is_not_run_again(store, monkeypatch):
    first = train(RUN, tiny(Curved), store)
    monkeypatch.setattr(finetune, "train", None)
    second = train(dataclasses.replace(RUN, checkpoint_every=7), tiny(Curved), store)
    assert first.vector == second.vector and first.record == second.record


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"steps": 13}, {"lr": 0.04}, {"method": "attention"}]
)
def test_what_changes_the_result_changes_the_key(store, change):
    keys = {
        store.key(finetune.identity(config, clip))
        for config in (RUN, dataclasses.replace(RUN, **change))
        for clip in (tiny(Affine), tiny(Curved))
    }
    assert len(keys) == 4


def test_epochs_and_rates_by_hand():
    seen = torch.cat([finetune.batch(RUN, step, COUNT) for step in range(25)])
    epochs = seen.reshape(-1, COUNT)  # 25 batches of 16 are 8 epochs of 50
    assert torch.equal(epochs.sort().values, torch.arange(COUNT).expand(8, -1))
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 8
    after = dataclasses.replace(RUN, seed=RUN.seed + 1, batch_size=COUNT)  # no epoch of this seed
    assert not (epochs == finetune.batch(after, 0, COUNT)).all(1).any()
    small = finetune.batch(RUN, 3, 5)  # more images in a batch than in the data
    assert len(small) == 16 and small.max() < 5
    config = FineTune(task=TASK, steps=10, warmup=4, lr=1.0)
    rates = [finetune.learning_rate(config, step) for step in range(10)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[7] == pytest.approx(0.5) and 0 < rates[9] < 0.1
    assert finetune.learning_rate(FineTune(task=TASK, steps=2, warmup=0, lr=1.0), 0) == 1.0


def vit():
    encoder = open_clip.transformer.VisionTransformer(
        image_size=8, patch_size=4, width=8, layers=2, heads=2, mlp_ratio=2, output_dim=4
    )
    return dict(encoder.named_parameters())


ATTENTION = ("attn.in_proj_weight", "attn.out_proj.weight")
BOTH = (*ATTENTION, "mlp.c_fc.weight", "mlp.c_proj.weight")
PER_BLOCK = {"attention": ATTENTION, "attention_mlp": BOTH}
PER_BLOCK |= {
    f"{method}_bias": (*names, *(name.replace("weight", "bias") for name in names))
    for method, names in PER_BLOCK.items()
}


SPLIT = {
    f"transformer.resblocks.{block}.{name}": torch.zeros(1)
    for block in range(2)
    for name in (
        "ln_1.weight",
        *(f"attn.{p}_proj.{s}" for p in ("q", "k", "v", "out") for s in ("weight", "bias")),
        *(f"mlp.{p}.{s}" for p in ("c_fc", "c_proj") for s in ("weight", "bias")),
    )
}


@pytest.mark.parametrize("method", [*PER_BLOCK, "nonlinear", "linearized"])
def test_methods_train_exactly_these_parameters_of_open_clips_vit(method):
    parts = [f"transformer.resblocks.{i}.{n}" for i in (0, 1) for n in PER_BLOCK.get(method, ())]
    assert sorted(methods.trainable(vit(), method, "ViT")) == sorted(parts or vit())
    if method in PER_BLOCK:  # other names of the same layers: q, k and v are apart
        count = sum(2 * (3 if "in_proj" in name else 1) for name in PER_BLOCK[method])
        assert len(methods.trainable(SPLIT, method, "other")) == count


def without(part):
    return {name: tensor for name, tensor in vit().items() if part not in name}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (dict(nn.Linear(2, 2).named_parameters()), "q, k, v weights.*ConvNeXt"),
        (without("out_proj"), "attention output weights"),
        (without("1.attn.in_proj_weight"), "blocks of ViT differ.*resblocks.1"),
        ({name.replace("attn", "mixer"): t for name, t in vit().items()}, "no parameter"),
    ],
)
def test_a_pattern_that_matches_nothing_raises(params, message):
    refuses(message, methods.trainable, params, "attention", "ViT")


def test_methods_that_are_unknown_or_cannot_be_fail_before_training(store):
    whole = {"nonlinear", "linearized", "tau_jp", "tak", "tak_even", "ortho_reg", "off_diagonal"}
    whole |= {"delta", "delta_even"}
    assert set(PER_BLOCK) | whole == set(METHODS)
    refuses("did you mean 'attention'", lambda: methods.trainable(vit(), "atention", "ViT"))
    refuses("ConvNeXt", train, dataclasses.replace(RUN, method="attention"), tiny(Curved), store)
    refuses("'LandCover'", train, dataclasses.replace(RUN, task="Landcover"), tiny(Curved), store)
    other = dataclasses.replace(RUN, model="vitb32")
    refuses("'vitb32'.*'mini'", train, other, tiny(Curved), store)


def test_nan_stops_the_run_and_keeps_nothing(store):
    clip = tiny(Curved)
    broken = torch.full_like(clip.encoder.params["last.bias"], float("nan"))
    params = clip.encoder.params | {"last.bias": broken}
    clip = dataclasses.replace(clip, encoder=dataclasses.replace(clip.encoder, params=params))
    message = f"{TASK} by 'nonlinear' is not finite at step 0 of 12: loss nan"
    refuses(message, train, RUN, clip, store)
    assert store.find("finetune", finetune.identity(RUN, clip)) is None


def test_divergence_stops_the_run(store, monkeypatch):
    clip = dataclasses.replace(tiny(Curved), logit_scale=100.0)
    config = dataclasses.replace(RUN, steps=400, lr=1e-9)
    rising = iter(range(10_000))
    logits = heads.Head.__call__  # weights that explode: logits that grow with the steps
    rise = lambda h, f: logits(h, f) * (1 + 0.1 * next(rising))  # noqa: E731
    monkeypatch.setattr(heads.Head, "__call__", rise)
    refuses(r"diverges at step \d+ of 400: loss \d", train, config, clip, store)


def test_bfloat16_comes_close(store):
    """Autocast leaves float64 alone, so this one runs in float32."""
    clip = tiny(Curved)
    encoder = clip.encoder
    module = encoder.module.float()
    module.forward = lambda x: module.last(torch.tanh(module.linear(x.flatten(1))))
    params = {name: tensor.float() for name, tensor in encoder.params.items()}
    clip = dataclasses.replace(clip, encoder=dataclasses.replace(encoder, params=params))
    half = dataclasses.replace(RUN, precision="bfloat16")
    one, two = (train(config, clip, store).vector for config in (RUN, half))
    assert 0.9 < one.cosine(two) < 1 - 1e-9
    assert {tensor.dtype for tensor in two.values()} == {torch.float32}


# --- Memory that runs out -------------------------------------------------------------------------
class Double(Encoder):
    """In float64."""

    def preprocess(self, x):
        return super().preprocess(x).double()


@pytest.fixture
def transformer():
    shape = {"width": 8, "layers": 2, "heads": 2, "mlp_ratio": 2, "output_dim": WIDTH}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = open_clip.transformer.VisionTransformer(image_size=SIZE, patch_size=2, **shape)
    module = module.double().eval().requires_grad_(False)
    encoder = dataclasses.asdict(tiny(Curved).encoder) | {
        "module": module, "params": dict(module.named_parameters()),
        "blocks": ("transformer.resblocks.0", "transformer.resblocks.1"),
        "device": torch.device("cpu"),
    }  # fmt: skip
    return Clip(encoder=Double(**encoder), text=text, logit_scale=10.0)


def short_of_memory(monkeypatch, fits, first=0):
    attempts = []
    for name in ("gradient", "tangent_gradient"):
        original = getattr(stepping, name)

        def limited(encoder, theta0, delta, x, loss, usual=original):
            attempts.append((len(x), {n: tensor.clone() for n, tensor in delta.items()}))
            value, gradients = usual(encoder, theta0, delta, x, loss)  # fails late
            if len(attempts) > first and not fits(len(x), isinstance(encoder, Recomputed)):
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.")
            return value, gradients

        monkeypatch.setattr(stepping, name, limited)
    return attempts


def assert_near(run, expected):
    assert run.record["losses"] == pytest.approx(expected.record["losses"], rel=1e-9)
    torch.testing.assert_close(run.vector, expected.vector, rtol=1e-6, atol=1e-9)
    assert (run.head is None) == (expected.head is None)
    if run.head is not None:
        torch.testing.assert_close(run.head.weight, expected.head.weight, rtol=1e-6, atol=1e-9)


def test_gradients_of_a_head_that_trains_are_clipped_too(store):
    """So small, they are nothing beside AdamW's epsilon, and nothing moves."""
    clip = tiny(Curved)
    config = dataclasses.replace(RUN, head="zero_shot_trained", weight_decay=0.0)
    start = heads.start(config.head, clip, suites.suite()[TASK], config.seed).weight
    usual = train(config, clip, store)
    clipped = train(dataclasses.replace(config, clip=1e-12), clip, store)
    assert float((usual.head.weight - start).abs().max()) > 0.05
    assert float((clipped.head.weight - start).abs().max()) < 1e-3
    assert clipped.vector.norm() < 1e-2 < usual.vector.norm()


KINDS = [{"method": method} for method in ("nonlinear", "linearized", "attention")]
KINDS += [{"method": "nonlinear", "head": "zero_shot_trained"}]


@pytest.mark.parametrize("again", [False, True], ids=["parts", "recomputed"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind.values()))
def test_smaller_parts_and_blocks_that_are_recomputed(
    tmp_path, monkeypatch, caplog, transformer, kind, again, in_one
):
    config = dataclasses.replace(RUN, steps=6, batch_size=14, **kind)
    whole = in_one(config, transformer)
    assert (whole.record["micro_batch"], whole.record["recomputed"]) == (14, False)
    fits = (lambda images, twice: twice and images <= 7) if again else (lambda n, _: n <= 5)
    attempts = short_of_memory(monkeypatch, fits, first=0 if again else 3)
    store = Store(tmp_path / "parts")
    run = train(config, transformer, store)
    sizes = [images for images, _ in attempts]
    (told,) = [record.getMessage() for record in caplog.records]
    if again:
        assert sizes == [14, 7, 4, 2, 1, 14, *2 * config.steps * [7]]
        assert "7 at a time, and the insides of blocks a second time" in told
    else:
        assert sizes[:9] == [14, 14, 14, 14, 7, 4, 4, 4, 2] and set(sizes[9:]) == {4, 2}
        assert same(attempts[3][1], attempts[8][1])  # of the same step
        assert not same(attempts[3][1], attempts[9][1])
        assert f"{TASK} by '{config.method}', step 3: out of memory" in told
        assert "4 at a time" in told
    assert (run.record["micro_batch"], run.record["recomputed"]) == ((7 if again else 4), again)
    assert_near(run, whole)
    assert store.find("finetune", finetune.identity(config, transformer)) is not None


def same(one, two):
    return all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
def test_where_one_image_never_fits_the_run_stops(store, monkeypatch, transformer):
    attempts = short_of_memory(monkeypatch, lambda images, again: False)
    message = "step 0: out of memory, even with 1 at a time, and the insides.*Take a smaller model"
    refuses(message, train, RUN, transformer, store)
    assert len(attempts) == 10
    assert store.find("finetune", finetune.identity(RUN, transformer)) is None
    attempts.clear()
    refuses(r"even with 1 at a time \(", lambda: train(RUN, tiny(Curved), store))  # has no blocks
    assert len(attempts) == 5


@pytest.mark.parametrize(
    ("images", "recompute", "method", "expected"),
    [
        (8, False, "nonlinear", (7, False)),
        (8, False, "linearized", (4, False)),  # tangents are kept beside the values
        (14, True, "nonlinear", (2, False)),
        (0, True, "nonlinear", (1, True)),  # not even that is sure to fit: it is tried
    ],
)
def test_a_processor_begins_with_what_fits_its_memory(
    tmp_path, monkeypatch, caplog, transformer, images, recompute, method, expected, in_one
):
    config = dataclasses.replace(RUN, steps=6, batch_size=14, method=method)
    tower = zoo.REGISTRY["mini"].tower
    free = footprint.needed(tower, images, recompute=recompute, text=False)
    whole = in_one(config, transformer)
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(2 * free, free))
    run = train(config, transformer, Store(tmp_path / "parts"))
    assert (run.record["micro_batch"], run.record["recomputed"]) == expected
    (told,) = [record.getMessage() for record in caplog.records]
    assert f"{expected[0]} at a time" in told and "GiB of memory are free" in told
    assert_near(run, whole)


def test_no_memory_for_the_optimisers_state_is_said(store, monkeypatch, transformer):
    def full(self):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 B")

    with monkeypatch.context() as short:
        short.setattr(torch.optim.AdamW, "step", full)
        refuses(r"step 0: out of memory for the optim.*precision=", train, RUN, transformer, store)
    assert store.find("finetune", finetune.identity(RUN, transformer)) is None
    train(RUN, transformer, store)


def test_images_that_do_not_fit_when_they_are_prepared(store, monkeypatch):
    whole, preprocess = train(RUN, tiny(Curved), store), Encoder.preprocess

    def short(self, x):
        if len(x) > 4:
            raise MemoryError
        return preprocess(self, x)

    monkeypatch.setattr(Encoder, "preprocess", short)
    run = train(RUN, tiny(Curved), Store(store.root / "other"))
    assert run.record["micro_batch"] == 4
    assert_near(run, whole)
