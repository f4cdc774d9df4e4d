"""Write `public.json`: penalties and losses of TAK and DELTA, as their authors' code computes them.

    python freeze_public.py PATH        PATH holds the package `merge_and_rebase`

The code is apanariello4/merge-and-rebase, as in FabioBozzoli's fork at 73d708b: of
`finetune/regularizers`, `kfac_ggn.py` (TAK), `ekfac_ggn.py` and `_distill_runtime.py` (DELTA).
They run on one small model in float64; numbers are rounded to 12 digits. What they import for
adapters, text and data sets is replaced.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
import torch.nn.functional as F
from torch import nn

IMAGES = (5, 7)  # of each task
REPLACED = (
    "finetune._vision_runtime", "finetune.reference_tasks", "models.openclip_classifier",
    "finetune.regularizers.base", "finetune.regularizers.registry", "utils",
    "finetune.regularizers._distill_config", "finetune.regularizers._vision_collection",
    "models.patch_openclip_attention", "utils.peft_materialization",
)  # fmt: skip


def noise(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class Small(nn.Module):
    """Two tokens of an image through one MLP, with `unit` to features of length 1."""

    def __init__(self, *, unit):
        super().__init__()
        self.unit = unit
        mlp = {"c_fc": nn.Linear(6, 5), "c_proj": nn.Linear(5, 6, bias=False)}
        block = {"ln_1": nn.LayerNorm(6), "mlp": nn.ModuleDict(mlp)}
        self.blocks = nn.ModuleList([nn.ModuleDict(block)])
        self.ln_post, self.proj = nn.LayerNorm(6), nn.Parameter(torch.zeros(6, 4))
        for seed, x in enumerate(self.parameters()):
            x.data = noise(seed, *x.shape)

    def forward(self, x):
        (block,), x = self.blocks, x.reshape(len(x), -1, 6)
        inner = torch.tanh(block["mlp"]["c_fc"](block["ln_1"](x)))
        f = self.ln_post((x + block["mlp"]["c_proj"](inner)).mean(1)) @ self.proj
        return F.normalize(f, dim=-1) if self.unit else f


def change(seed):
    named = enumerate(Small(unit=True).named_parameters(), seed)
    return {name: 0.3 * noise(place, *x.shape) for place, (name, x) in named}


def images(task):
    return noise(50 + task, IMAGES[task], 3, 2, 2)


def found(value, loss, leaves):
    slopes = torch.autograd.grad(loss, [*leaves.values()])
    names = [name.removeprefix("visual.") for name in leaves]
    return {"value": value, "gradient": dict(zip(names, slopes, strict=True))}


def penalties():
    from merge_and_rebase.finetune.regularizers import ekfac_ggn, kfac_ggn

    exact = {"precision": "fp64", "fisher_num_samples_expectation": 0}
    model, config = Small(unit=False), kfac_ggn.KfacGgnConfig(**exact)
    each = [images(task).split(4) for task in range(2)]
    stats = [kfac_ggn.collect_curvature(model, x, config=config) for x in each]
    leaves = {f"visual.{n}": x.requires_grad_() for n, x in change(10).items()}
    last = ekfac_ggn.EkfacGgnConfig(**exact)
    last = ekfac_ggn.collect_ekfac_curvature(model, each[1], config=last)
    known = {"ek_fac": ekfac_ggn.compute_ekfac_penalty(leaves, [("reference", 1.0, last)])}
    for name, tasks in (("tak", [0, 1]), ("tak of 0", [0]), ("tak of 1", [1])):
        curvature = kfac_ggn.aggregate_curvature({i: stats[i] for i in tasks}, "another")
        known[name] = kfac_ggn.compute_curvature_penalty(leaves, curvature)
    kinds = {"mlp": "loss_reg_matrix", "proj": "loss_reg_proj", "ln": "loss_reg_ffT"}
    return {
        name: found({k: getattr(one, n) for k, n in kinds.items()}, one.total_unscaled, leaves)
        for name, one in known.items()
    }


def encoder(tau, mode):
    from merge_and_rebase.models.linearized import LinearizedModule

    visual, made = Small(unit=True), nn.Module()
    made.clip_model = nn.Module()
    made.clip_model.model = nn.ModuleDict({"visual": visual})
    made.clip_model.normalize, made.clip_model.logit_scale = False, 1.0
    made.head = nn.Linear(4, 3, bias=False)
    made.head.weight.data = noise(90, 3, 4)
    made.forward_mode_name, made._linearized_module = mode, LinearizedModule.from_module(visual)
    start = {n: x.detach().clone() for n, x in made.named_parameters()}
    for name, x in visual.named_parameters():
        x.data = x + tau[name]
    return made, start, dict(visual.named_parameters())


def step(a, *, whole):
    from merge_and_rebase.finetune.regularizers import _distill_capture as capture
    from merge_and_rebase.finetune.regularizers import _distill_runtime as theirs

    student, start, own = encoder(change(10), "standard")
    teacher, _, its = encoder(change(30), "linearized_ntk")
    end = SimpleNamespace(source="symbolic", name="visual_features", transforms=())
    end = capture.EndpointRuntime(end)
    prepared = theirs.PreparedDistillation(
        teacher=SimpleNamespace(
            model=teacher, mode="online", stop_gradient=True, along_path_enabled=True,
            along_path_base=start, supervised_cfg={"enabled": whole}, regularizer_impl=None,
        ),
        locations=(capture.LocationRuntime("features", end, end, {"name": "mse"}, 10.0),),
        student_store=capture.CaptureStore(), teacher_store=capture.CaptureStore(),
        optimizer_bundles=(), student_base=start,
        along_path=SimpleNamespace(enabled=True, sampling="uniform", alpha_start=a, alpha_end=a),
    )  # fmt: skip
    data = {"inputs": images(1), "targets": torch.arange(7) % 3, "step": 0, "model": student}
    made = theirs.prepare_batch_override(prepared, virtual_batch_start=True, **data)
    loss = theirs.apply_prepared_distillation(
        prepared, batch_index=0, outputs=made.outputs, batch_context=made.context, **data
    )
    if not whole:
        return found({"student": loss}, loss, own)
    loss, leaves = loss + made.primary_loss, own | {f"teacher:{n}": x for n, x in its.items()}
    taught = student._distillation_last_breakdown["loss_teacher_task"]
    return found({"student": loss - taught}, loss, leaves)


def rounded(x):
    return [float(f"{value:.12g}") for value in x.reshape(-1).tolist()]


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    stubs = {name: MagicMock() for name in REPLACED}
    sys.modules |= {f"merge_and_rebase.{name}": stub for name, stub in stubs.items()}
    adapters = stubs["utils.peft_materialization"]
    adapters.is_peft_linear_module = adapters.is_lora_parameter_name = lambda _: False
    stubs["finetune.regularizers.base"].BatchOverride = SimpleNamespace
    stubs["finetune.regularizers._distill_config"].normalize_loss_cfg = dict
    steps = {f"delta at {a}": step(a, whole=a == 1) for a in (1.0, 0.6)}
    numbers = {
        name: {kind: {n: rounded(x) for n, x in table.items()} for kind, table in one.items()}
        for name, one in (penalties() | steps).items()
    }
    text = json.dumps({"torch": torch.__version__, "numbers": numbers}) + "\n"
    Path(__file__).with_name("public.json").write_text(text)
