"""Write `public.json`: what public code of newer methods makes of the small vectors of these tests.

    python freeze_public.py PATH        in an environment with fusion_bench, outside of this one

| method | repository and commit | file, in PATH |
|---|---|---|
| RegMean++ | PyPI's fusion_bench 0.2.33 | (installed) |
| Subspace Boosting | tanganke/fusion_bench 9c8c6a6 | `subspace_boosting_utils.py` |
| Essential Subspace | kiddo127/ESM 42b30fd | `essential_subspace_decomposition.py` |
| | | `esm_utils.py` |
| ACE-Merging | unravel-xu/ACE-Merging 22d9dfe | `strategy.py` |
| ACTMat | marawangamal/actmat 42292c7 | `merging.py`, of src |
| DC-Merge | Tobeginwith/DC-Merge 3c443e4 | `DC_utils.py`, of vision_fft_merge |

Vectors are in float64; numbers are rounded to 12 digits. Data
sets, checkpoints and GPUs that these files ask for are replaced.
"""

import contextlib
import io
import json
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
from freeze_fusion_bench import HERE, TENSORS, rounded
from torch import nn

from conftest import MATRICES, Block, shown, tokens, vectors  # isort: skip

CLIP = ("get_layers", "get_regmean_weights", "layer_batches_forward", "merge_embedding_layer",
        "update_merged_params_dict")  # fmt: skip


def boosting(beta):
    from subspace_boosting_utils import subspace_boosting

    two = vectors(2)
    total = {"model.visual.proj" if n == "proj" else n: x + two[1][n] for n, x in two[0].items()}
    found = subspace_boosting(total, beta=beta)
    return {n.removeprefix("model.visual."): x for n, x in found.items()}


def essential():
    for name in ("models.task_vectors", "models.heads", "models.modeling", "datasets.registry",
                 "datasets.common", "utils", "utils.variables_and_paths"):  # fmt: skip
        sys.modules[f"src.{name}"] = MagicMock()
    from esm_utils import esm_merge
    from essential_subspace_decomposition import _compute_esd

    torch.Tensor.cuda = lambda self: self
    tau = [{n: x for n, x in v.items() if n not in TENSORS} for v in vectors(3)]
    directions = [
        {
            n: dict(zip(("eigenvalues", "eigenvectors"), _compute_esd(x @ v[n].T), strict=True))
            for n, x in shown(v, rows).items()
        }
        for v, rows in zip(tau, tokens(3), strict=True)
    ]
    config = SimpleNamespace(DATASETS=[0, 1, 2], device="cpu")
    each = {place: SimpleNamespace(vector=v) for place, v in enumerate(tau)}
    return esm_merge(each, config, None, dict(enumerate(directions)))


def regmean_plusplus():
    sys.modules.setdefault("datasets", MagicMock())
    from fusion_bench.method.regmean_plusplus import clip_regmean_plusplus, regmean_plusplus
    from fusion_bench.modelpool import BaseModelPool

    class Layer(Block):
        def forward(self, x, **_):
            return (super().forward(x),)

    def own(name):
        name = name.replace("transformer.resblocks", "encoder.layers")
        name = name.replace("positional_embedding", "embeddings.position")
        return "vision_model." + name.replace("n_proj_w", "n_proj.w")

    def model(tau):
        blocks = nn.ModuleDict({"layers": nn.ModuleList([Layer(), Layer()])})
        position = nn.ParameterDict({"position": torch.zeros(5, 6)})
        inner = nn.ModuleDict({"embeddings": position, "encoder": blocks})
        made = nn.ModuleDict({"vision_model": inner}).double()
        made.load_state_dict({own(n): x + tau.get(n, 0) for n, x in start.items()})
        return made

    *each, start = vectors(4)
    start = {n: x for n, x in start.items() if n != "proj"}
    pool = MagicMock(spec=BaseModelPool)
    pool.named_models.return_value = [(place, model(v)) for place, v in enumerate(each)]
    pool.load_pretrained_model.return_value = model({})
    pool.load_train_dataset.side_effect = tokens(3).__getitem__
    clip = clip_regmean_plusplus.RegMeanAlgorithmForCLIPPlusPlus
    methods = {name: getattr(clip, name) for name in CLIP} | {
        "fabric": SimpleNamespace(setup=lambda x: x),
        "get_input_for_first_layer": lambda self, model, x: list(
            (x + model.vision_model.embeddings.position).split(4)
        ),
    }
    merge = type("Merge", (regmean_plusplus.RegMeanAlgorithmPlusPlus,), methods)(
        num_regmean_examples=9, reduce_non_diagonal_ratio=0.7, weight_transpose=True,
        exclude_param_names_regex=[],
    )  # fmt: skip
    found = merge.run(pool).state_dict()
    return {name: found[own(name)] - x for name, x in start.items()}


def few(count, scales=(1.0,) * 3):
    made = ({n: x for n, x in v.items() if n not in TENSORS} for v in vectors(count))
    return [{n: scale * x for n, x in v.items()} for v, scale in zip(made, scales, strict=False)]


def ace(scales):
    from strategy import MergeStrategy

    torch.set_default_dtype(torch.float64)  # it mixes float32 zeros with the vectors
    each = [SimpleNamespace(task_vector_param_dict=v) for v in few(3, scales)]
    found = MergeStrategy(list(few(1)[0]), each, "cpu").ace_merging()
    torch.set_default_dtype(torch.float32)
    return found


def actmat():
    sys.modules["src.task_vectors"] = MagicMock()
    from merging import merge_actmat

    each = few(3)
    stacked = {n: torch.stack([v[n] for v in each]) for n in each[0]}
    return {n: merge_actmat(x) if n in MATRICES else x.mean(0) for n, x in stacked.items()}


def dc_merge():
    from DC_utils import dc_merge as theirs

    each = [SimpleNamespace(vector=v) for v in few(2)]
    return theirs(each, SimpleNamespace(DATASETS=[0, 1], device="cpu"))


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        found = {f"boosting {beta}": boosting(beta) for beta in (0.01, 0.3)}
        found |= {"essential": essential(), "regmean_plusplus": regmean_plusplus()}
        found |= {"ace": ace((1, 1, 1)), "ace apart": ace((1, 0.02, 0.3)), "dc_merge": dc_merge()}
        found["actmat"] = actmat()
    merged = {rule: {n: rounded(x) for n, x in sorted(one.items())} for rule, one in found.items()}
    text = json.dumps({"torch": torch.__version__, "merged": merged}) + "\n"
    (HERE / "public.json").write_text(text)
