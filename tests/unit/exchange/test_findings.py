"""What is told of a checkpoint: rounding, statistics, other weights, and what is no checkpoint."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tasklab import Lab, Parameters
from tasklab.errors import TasklabError
from tasklab.exchange import findings, importing, layouts, merged, naming, precision, reading
from tasklab.mini.clip import MEAN
from tasklab.models import loading
from tasklab.storage.store import Store
from tasklab.taskvector import TaskVector
from tests.helpers import refuses

MODEL = "mini_xs"
BASE = loading.load(MODEL).encoder.params
_NOISE = torch.Generator().manual_seed(1)
THETA = {
    name: x + 0.01 * x.std().clamp_min(1e-3) * torch.randn(x.shape, generator=_NOISE)
    for name, x in BASE.items()
}
TRUE = {name: THETA[name] - x for name, x in BASE.items()}
FULL = {f"visual.{name}": x for name, x in THETA.items()} | {"logit_scale": torch.tensor(4.6)}


def flat(vector):
    return torch.cat([vector[name].reshape(-1).double() for name in BASE])


def off(vector):
    return float((flat(vector) - flat(TRUE)).norm() / flat(TRUE).norm())


def saved(content, path):
    torch.save(content, path)
    return path


def compared(content, path, **more):
    return importing.compare(saved(content, path / "x.pt"), MODEL, **more)


def notes(made):
    return "; ".join(made.checkpoint.notes)


# Rounding.
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
def test_a_step_is_the_distance_to_the_next_number(kind):
    bits = {1: torch.uint8, 2: torch.int16}[kind.itemsize]
    x = torch.tensor([1.0, 1.5, -3.0, 0.01, 200.0, 0.0]).to(kind)
    larger = (x.view(bits) + 1).view(kind).float() - x.float()
    assert torch.equal(precision.steps(x.float(), kind), larger.abs())


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_is_told_as_a_share_of_the_vector(tmp_path, kind, back):
    """Also of numbers that were stored in 32 bits after they were rounded."""
    content = {name: x.to(kind).float() if back else x.to(kind) for name, x in FULL.items()}
    made = compared(content, tmp_path)
    share = float(re.search(rf"{str(kind)[6:]}: that is about ([\d.]+) %", notes(made))[1])
    assert share == pytest.approx(100 * off(made.vector), rel=0.1)
    assert "rounded" not in notes(compared(FULL, tmp_path))


def test_the_rounding_of_a_base_counts_unless_it_is_the_start(tmp_path):
    for kind, told in ((torch.bfloat16, True), (torch.float16, False)):
        base = saved({name: x.to(kind) for name, x in BASE.items()}, tmp_path / "base.pt")
        assert ("rounded to bfloat16" in notes(compared(FULL, tmp_path, base=base))) == told


def test_what_rounding_alone_made_of_theta_0_is_unchanged(tmp_path):
    part = {n for n in BASE if ".attn." in n and n.endswith("weight")}
    rounded = {n: (THETA if n in part else BASE)[n].bfloat16() for n in BASE}
    made = compared(rounded, tmp_path)
    assert {n for n, x in made.vector.items() if x.any()} == part
    assert f"{len(BASE) - len(part)} parameters differ by rounding alone" in notes(made)
    store = Store(tmp_path / "store")
    record = importing.add(store, tmp_path / "x.pt", MODEL, "Cars", method="attention")
    assert record["tensors"] == len(part)
    bias = BASE["ln_post.bias"]
    cut = (bias.view(torch.int32) & ~0xFFFF).view(torch.float32)  # and not rounded to the nearest
    assert (cut != bias.bfloat16().float()).any()
    saved(rounded | {"ln_post.bias": cut.bfloat16()}, tmp_path / "x.pt")
    importing.add(store, tmp_path / "x.pt", MODEL, "Cars", method="attention", name="cut")
    rounded["ln_post.bias"] = (cut + 2 * precision.steps(cut, torch.bfloat16)).bfloat16()
    saved(rounded, tmp_path / "x.pt")
    with pytest.raises(TasklabError, match=r"1 parameters .* by more than rounding, such as ln_po"):
        importing.add(store, tmp_path / "x.pt", MODEL, "Cars", method="attention", name="moved")


# Names.
@pytest.mark.parametrize("word", ["_orig_mod", "_fsdp_wrapped_module", "module", "_forward_module"])
@pytest.mark.parametrize("where", ["visual.", "resblocks.1.", "resblocks.0.attn.", ""])
def test_wrappers_within_names_are_taken_off(tmp_path, word, where):
    content = {
        name.replace(where, f"{where}{word}.") if where else f"{word}.{name}": x
        for name, x in FULL.items()
    }
    assert off(compared(content, tmp_path).vector) < 1e-6


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"visual._orig_mod.conv1.weight": 1}, r"visual\.conv1\.weight is in it twice"),
        ({"visual.conv1.parametrizations.weight.original0": 1}, "parametrizations"),
        ({"visual.conv1.weight_g": 1}, "parametrizations"),
        ({"visual.conv1.weight_mask": 1}, "pruning"),
        ({"visual._flat_param": 1}, "FSDP"),
        ({"visual.transformer.resblocks.0.mlp.c_fc.qweight": 1}, "quantised"),
        ({"visual.transformer.resblocks.0.mlp.c_fc.weight_scale_inv": 1}, "quantised"),
        ({"visual.transformer.resblocks.0.mlp.c_fc.scale_weight": 1}, "quantised"),
        ({"visual.transformer.resblocks.0.attn.ia3_l": 1}, "adapters"),
        ({"visual.transformer.resblocks.0.adapter.down.weight": 1}, "adapters"),
        ({"text.q_proj.lora_A.weight": 1}, "adapters"),
    ],
)
def test_what_is_no_plain_weight_is_said(tmp_path, more, message):
    content = FULL | {name: torch.ones(2) for name in more}
    refuses(message, compared, content, tmp_path)


def of_timm(name):
    """Return what timm calls a parameter of open_clip's image tower."""
    for ours, theirs in {
        "class_embedding": "cls_token", "positional_embedding": "pos_embed", "proj": "head.weight",
        "conv1.weight": "patch_embed.proj.weight",
    }.items():  # fmt: skip
        name = theirs if name == ours else name
    for ours, theirs in {
        "transformer.resblocks": "blocks", "ln_pre": "norm_pre", "ln_post": "norm", "ln_": "norm",
        "attn.in_proj_": "attn.qkv.", "out_proj": "proj", "c_fc": "fc1", "c_proj": "fc2",
    }.items():  # fmt: skip
        name = name.replace(ours, theirs)
    return name


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_clip_of_timm_is_read(tmp_path, prefix):
    content = {f"{prefix}{of_timm(name)}": x for name, x in THETA.items()}
    content |= {"loss.weight": torch.ones(2)} if prefix else {}
    for name in ("cls_token", "pos_embed"):
        content[prefix + name] = content[prefix + name].reshape(1, -1, BASE["proj"].shape[0])
    content[f"{prefix}head.weight"] = THETA["proj"].mT
    content[f"{prefix}head.bias"] = torch.zeros(len(THETA["proj"].mT))
    assert off(compared(content, tmp_path).vector) < 1e-6
    content[f"{prefix}head.bias"] += 1  # it classifies
    made = compared(content, tmp_path)
    assert not made.vector["proj"].any() and "the pre-trained one is taken" in notes(made)
    assert torch.equal(made.vector["conv1.weight"], TRUE["conv1.weight"])


def test_adapters_resnets_and_counters(tmp_path):
    prefix = "base_model.model.vision_model.encoder.layers.0.self_attn"
    for name in (f"{prefix}.k_proj.ia3_l", f"{prefix}.q_proj.oft_r.weight", "adapter.0.weight"):
        save_file({name: torch.ones(4, 1)}, tmp_path / "adapter_model.safetensors")
        refuses("merge them into it first", importing.compare, tmp_path, MODEL)
    unnamed = {f"blocks.{i}.w_a": torch.ones(4, 2) for i in range(3)}
    refuses(r"They have 24 numbers, and the encoder [\d,]+\.", compared, unnamed, tmp_path)
    names = [f"{block}{name}" for block in ("", "layer1.0.", "layer2.0.") for name in (
        "conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean",
    )] + [f"layer{i}.1.conv{k}.weight" for i in (1, 2) for k in (1, 2)]  # fmt: skip
    own = {name: torch.Size([2]) for name in names if "running" not in name}
    for prefix in ("", "module.", "backbone."):
        found = layouts.recognise({f"{prefix}{n}": torch.ones(2) for n in [*names, "fc.bias"]}, own)
        assert set(found.theta) == set(names) and not found.missing and found.left == 1
    two = {f"{p}.{n}": torch.full((2,), len(p)) for n in names for p in ("model", "ema_model")}
    refuses(r"2 encoders \('model\.', 'ema_model\.'\)", layouts.recognise, two, own)
    width = BASE["ln_pre.bias"].shape[0]
    content = FULL | {"visual.ln_pre.bias": torch.full((1,), 0.5).expand(width)}
    content["steps"] = torch.tensor(3)
    vector = compared(content, tmp_path).vector
    assert torch.equal(vector["ln_pre.bias"], 0.5 - BASE["ln_pre.bias"])


# Other libraries' networks.
RESNET = "timm/test_resnet.r160_in1k"


@pytest.fixture
def start():
    import timm

    torch.manual_seed(0)
    return timm.create_model("test_resnet", pretrained=False).state_dict()


def test_statistics_of_batch_normalisation_are_told(tmp_path, start):
    tuned = {n: x + 0.01 * torch.randn_like(x) if x.ndim > 1 else x for n, x in start.items()}
    base = saved(start, tmp_path / "start.pth")
    made = importing.compare(saved(tuned, tmp_path / "x.pth"), RESNET, base=base)
    assert "statistics" not in notes(made) and not any("running" in name for name in made.vector)
    expected = tuned["conv1.0.weight"] - start["conv1.0.weight"]
    assert torch.equal(made.vector["conv1.0.weight"], expected)
    moved = {n: x + 0.5 if "running_mean" in n else x for n, x in tuned.items()}
    count = sum("running_mean" in name for name in start)
    made = importing.compare(saved(moved, tmp_path / "x.pth"), RESNET, base=base)
    assert f"differ from those of {made.base} in {count} tensors" in notes(made)
    bare = {name: x for name, x in tuned.items() if "running" not in name and "num_b" not in name}
    made = importing.compare(saved(bare, tmp_path / "x.pth"), RESNET, base=base)
    assert "it has no " in notes(made) and made.vector["bn1.weight"].any() == False  # noqa: E712
    assert findings.statistics({}, {"bn.num_batches_tracked": torch.tensor(3)}, "x") == []


@pytest.mark.parametrize(
    ("family", "kind", "left"),
    [
        ("ViT", "Model", 2),  # the pooler
        ("ViT", "ForImageClassification", 2),  # the classifier
        ("DeiT", "Model", 2),
        ("DeiT", "ForImageClassificationWithTeacher", 4),
        ("Dinov2", "Model", 1),
        ("Dinov2", "ForImageClassification", 3),
    ],
)
def test_transformers_vits_have_their_features_under_timms_names(family, kind, left):
    import transformers
    from timm.models import deit, vision_transformer

    width, blocks, heads, size, patch = 24, 2, 3, 32, 8
    usual = vision_transformer.VisionTransformer
    own_class = {"DeiT": deit.VisionTransformerDistilled}.get(family, usual)
    own = own_class(
        img_size=size, patch_size=patch, embed_dim=width, depth=blocks, num_heads=heads,
        num_classes=0, init_values=0.1 if family == "Dinov2" else None,
    ).eval()  # fmt: skip
    config = getattr(transformers, f"{family}Config")(
        hidden_size=width, num_hidden_layers=blocks, image_size=size, patch_size=patch,
        num_attention_heads=heads, intermediate_size=4 * width, num_labels=3, layer_norm_eps=1e-6,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{family}{kind}")(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    shapes = {name: x.shape for name, x in own.named_parameters()}
    state = {f"module.{name}": x for name, x in theirs.state_dict().items()}
    found = layouts.recognise(state, shapes)
    assert {name: x.shape for name, x in found.theta.items()} == shapes and not found.missing
    assert found.left == left
    x = torch.randn(2, 3, size, size)
    inner = theirs if kind == "Model" else theirs.base_model
    tokens = 2 if family == "DeiT" else 1  # timm's takes the mean of both
    with torch.no_grad():
        expected = inner(x).last_hidden_state[:, :tokens].mean(1)
        features = torch.func.functional_call(own, found.theta, (x,))
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["model.safetensors", "clip_cars.safetensors"])
@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"hidden_act": "quick_gelu"}, "activation quickgelu"),
        ({"model_type": "clip", "vision_config": {}}, "activation quickgelu"),
        ({"model_cfg": {"quick_gelu": True, "vision_cfg": {"width": 64}}}, "activation quickgelu"),
        ({"hidden_act": "gelu", "num_attention_heads": 7}, "heads 7"),
        ({"hidden_act": "gelu", "layer_norm_eps": 0.01}, "layer_norm_eps 0.01"),
    ],
)
def test_settings_beside_a_file_of_any_name_are_compared(tmp_path, name, config, told):
    save_file(FULL, tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8-sig")
    refuses(told, lambda: importing.compare(tmp_path / name, MODEL))
    (tmp_path / "config.json").write_text('{"hidden_act": "gelu", "layer_norm_eps": 1e-12}')
    assert "activation" not in notes(importing.compare(tmp_path / name, MODEL))
    (tmp_path / "config.json").write_text('{"hidden_act": "gelu_pytorch_tanh"}')  # as SigLIP's
    told = notes(importing.compare(tmp_path / name, MODEL))
    assert "approximation by tanh differ by at most 0.0005" in told
    (tmp_path / "config.json").unlink()
    assert "activation" in notes(importing.compare(tmp_path / name, MODEL))


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        (
            "preprocessor_config.json",
            {"image_mean": [0.48] * 3, "image_std": [0.27] * 3},
            "by the mean [0.48, ",
        ),
        ("preprocessor_config.json", {"image_mean": MEAN, "image_std": [0.5] * 3}, "the std"),
        ("preprocessor_config.json", {"do_normalize": False}, "does not normalise"),
        ("config.json", {"hidden_act": "gelu", "pretrained_cfg": {"mean": [0.485] * 3}}, "0.485"),
        ("config.json", {"model_cfg": {}, "preprocess_cfg": {"std": [0.5] * 3}}, "the std"),
        ("preprocessor_config.json", {"image_mean": [x + 1e-4 for x in MEAN]}, ""),
        ("preprocessor_config.json", {"image_mean": "half"}, ""),
        ("preprocessor_config.json", [], ""),
    ],
)
def test_another_normalisation_of_images_is_told(tmp_path, file, content, told):
    save_file(FULL, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"hidden_act": "gelu"}')
    (tmp_path / file).write_text(json.dumps(content))
    found = importing.compare(tmp_path, MODEL).checkpoint.notes
    found = [note for note in found if "normalise" in note]
    assert len(found) == bool(told) and told in "".join(found)


# Parts of a training run.
def test_averaged_and_left_out_weights_are_named(tmp_path):
    other = {name: x + 0.003 for name, x in FULL.items()}
    for content, word, shift in (
        ({"state_dict": FULL, "state_dict_ema": other}, "'state_dict_ema'", False),
        ({"net": FULL, "swa_net": other}, "'swa_net'", False),
        ({"model_ema": other, "epoch": 3}, "in 'model_ema', are averaged", True),
        ({f"module.{n}": x for n, x in other.items()} | {"n_averaged": torch.tensor(7)},
         "n_averaged", True),
        ({f"ema.{n}": x for n, x in other.items()}, "in 'ema.visual.', are averaged", True),
    ):  # fmt: skip
        made = compared(content, tmp_path)
        assert word in notes(made) and (off(made.vector) > 0.01) == shift
    assert "averaged" not in notes(compared({"state_dict": FULL, "epoch": 3}, tmp_path))
    assert "1 tensors of other parts are left out (logit_scale)" in notes(compared(FULL, tmp_path))
    content = FULL | {"visual.ln_post.bias": torch.ones(3)}
    refuses(r"ln_post\.bias 3 for \d+\)\. Choose the model", compared, content, tmp_path)


def test_a_trainers_folder_names_its_checkpoints(tmp_path):
    for folder in ("checkpoint-500", "checkpoint-1000", "logs"):
        (tmp_path / folder).mkdir()
    for folder in ("checkpoint-500", "checkpoint-1000"):
        save_file(FULL, tmp_path / folder / "model.safetensors")
        (tmp_path / folder / "optimizer.pt").write_bytes(b"")
    refuses(r"checkpoint-1000, checkpoint-500\.", importing.compare, tmp_path, MODEL)
    (tmp_path / "x").mkdir()
    (tmp_path / "y" / "global_step5").mkdir(parents=True)  # DeepSpeed's
    refuses("It has global_step5/", lambda: importing.compare(tmp_path / "y", MODEL))
    (tmp_path / "y" / "zero_to_fp32.py").touch()
    refuses("of DeepSpeed: its zero_to", lambda: importing.compare(tmp_path / "y", MODEL))
    (tmp_path / "x" / "__0_0.distcp").write_bytes(b"")
    refuses(r"torch\.distributed", lambda: importing.compare(tmp_path / "x", MODEL))


# Differences, and other sizes.
class Vector:
    """As task vectors of other code are pickled."""

    def __init__(self, changes):
        self.vector = changes


def test_a_task_vector_of_other_code_is_read(tmp_path):
    changes = {f"model.visual.{name}": x for name, x in TRUE.items()}
    for content in (Vector(changes), {"vector": changes}, {"task_vector": TRUE}):
        made = compared(content, tmp_path)
        assert off(made.vector) < 1e-6 and made.checkpoint.vector is not None
        assert "does not tell from which weights" in notes(made)
    part = {name: x for name, x in TRUE.items() if ".attn." in name}
    made = compared({"vector": part}, tmp_path)
    assert made.vector.keys() == part.keys()
    assert f"{len(BASE) - len(part)} parameters are not in it" in notes(made)
    refuses("looks like a task vector and not like weights", compared, TRUE, tmp_path)
    lists = {f"model.params.{i}": x for i, x in enumerate(TRUE.values())}
    lists |= {f"model.params0.{i}": torch.zeros_like(x) for i, x in enumerate(TRUE.values())}
    made = compared(Vector(lists), tmp_path)  # of a linearized encoder
    assert off(made.vector) < 1e-6 and made.vector.method == "linearized"
    for kind in (torch.bfloat16, torch.float8_e4m3fn):
        made = compared({"vector": {name: x.to(kind) for name, x in TRUE.items()}}, tmp_path)
        share = float(re.search(rf"{str(kind)[6:]}: that is about ([\d.]+) %", notes(made))[1])
        # what 8 bits round to zero cannot be told from what did not change
        assert share == pytest.approx(100 * off(made.vector), rel=0.6 if kind.itemsize < 2 else 0.2)


def test_what_is_told_of_a_file_is_told_wherever_it_is_read(tmp_path, caplog):
    twice = saved({"model": FULL, "ema": FULL}, tmp_path / "x.pt")
    far = saved({name: -x for name, x in FULL.items()}, tmp_path / "far.pt")
    lab = Lab(Parameters(model=MODEL), progress=False)
    for read in (lab.vector, lambda file: importing.vector_of(file, MODEL)):
        caplog.clear()
        assert off(read(twice)) < 1e-6
        read(far)
        assert "x.pt: it has other weights in 'ema'" in caplog.text
        assert "far.pt: it is 2 norms of theta_0 away" in caplog.text
        assert "left out" not in caplog.text


@pytest.mark.parametrize(("count", "told"), [(26, "images of 40 x 40"), (16, "another image size")])
def test_another_image_size_is_named(tmp_path, count, told):
    width = BASE["positional_embedding"].shape[1]
    content = FULL | {"visual.positional_embedding": torch.ones(count, width)}
    refuses(rf"{count}x{width} for 17x.* {count} positions.* {told}", compared, content, tmp_path)


def test_wrapped_blocks_of_a_pickled_module_tell_their_network(tmp_path):
    module = loading.load(MODEL).encoder.module
    block = module.transformer.resblocks[0]
    gelu = block.mlp.gelu
    try:
        block.mlp.gelu = nn.ReLU()
        refuses("activation relu", lambda: compared(nn.ModuleDict({"module": module}), tmp_path))
    finally:
        block.mlp.gelu = gelu
    assert naming.bare("a._orig_mod.b.module.c") == "a.b.c"
    assert reading.shapes(MODEL).keys() == BASE.keys()


def test_what_a_vector_lacks_is_told_wherever_it_goes(tmp_path, start, caplog):
    """`vector_of`, `read`, imported and merged vectors tell of statistics, as `import` does."""
    store = Store(tmp_path / "store")
    base = saved(start, tmp_path / "start.pth")
    names = []
    for name in ("x", "y"):
        moved = {n: x * 2 if "running_var" in n else x + 0.01 for n, x in start.items()}
        moved |= {n: x for n, x in start.items() if "num_batches" in n}
        names.append(saved(moved, tmp_path / f"{name}.pth"))
    importing.vector_of(names[0], RESNET, base=base)
    assert "running statistics" in caplog.text
    importing.add(store, names[0], RESNET, "x", base=base)
    caplog.clear()
    importing.imported(store, RESNET, "x_nonlinear")
    assert "running statistics" in caplog.text
    found = [merged.named_source(str(one), store, RESNET, base=str(base)) for one in names]
    target = tmp_path / "merged.safetensors"
    merged.write_vector(target, TaskVector.sum(one.vector for one in found), found, {})
    again = merged.named_source(str(target), store)
    expected = [*map(str, names)]
    assert [note.partition(": ")[0] for note in again.notes if "statistics" in note] == expected
    assert findings.lost(again.notes) == [n for n in again.notes if "statistics" in n]


def test_several_networks_and_copies(tmp_path):
    copies = FULL | {f"image_encoder.{name}": x for name, x in FULL.items()}
    assert off(compared(copies, tmp_path).vector) < 1e-6
    copies["image_encoder.visual.proj"] = FULL["visual.proj"] + 1
    refuses("2 encoders", compared, copies, tmp_path)
    averaged = {f"{one}.{name}": x for one in ("model", "ema_model") for name, x in FULL.items()}
    refuses("2 encoders", compared, averaged, tmp_path)  # two models, though equal
    refuses("several .*'best'.*'last'", compared, {"best": FULL, "last": FULL}, tmp_path)
    for odd in (FULL["visual.proj"].to_sparse(), FULL["visual.proj"].to("meta")):
        content = FULL | {"visual.proj": odd}
        refuses(r"'visual\.proj' is no plain tensor but a .*(spa|me)", compared, content, tmp_path)
    save_file(FULL, tmp_path / "model.safetensors")
    saved({name: x * 2 for name, x in FULL.items()}, tmp_path / "pytorch_model.bin")
    (tmp_path / "model_1.safetensors").touch()  # accelerate's, of the second model
    told = "model.safetensors is read, and not pytorch_model.bin, model_1.safetensors beside it"
    assert told in notes(importing.compare(tmp_path, MODEL))
    assert told not in notes(importing.compare(tmp_path / "model.safetensors", MODEL))


def test_what_was_not_trained_or_not_saved_is_told(tmp_path):
    made = compared({"state_dict": FULL, "state_dict_ema": FULL}, tmp_path)
    assert "everywhere" not in notes(made)
    for value in (0.0, 1.0):  # not gathered; as a layer is made
        reset = FULL | {"visual.ln_pre.weight": torch.full_like(THETA["ln_pre.weight"], value)}
        made = compared(reset, tmp_path)
        assert "ln_pre.weight has one number everywhere" in notes(made)
        assert torch.equal(made.vector["ln_pre.weight"], value - BASE["ln_pre.weight"])
    same = {"state_dict": dict(BASE), "state_dict_ema": FULL}
    refuses("no vector. It has other weights in 'state_dict_ema'", compared, same, tmp_path)
    empty = {name: torch.empty(0) for name in FULL}
    refuses("tensors are empty, as DeepSpeed's ZeRO-3", compared, {"module": empty}, tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    names = list(FULL)
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for part, own in zip(parts, (names[:9], names[8:]), strict=True):
        save_file({name: FULL[name].contiguous() for name in own}, tmp_path / part)
    index = {"weight_map": {name: parts[n > 8] for n, name in enumerate(names)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    refuses(re.escape(names[8]), importing.compare, tmp_path, MODEL)


# Text towers, and starts.
def test_a_text_tower_that_was_trained_too_is_told(tmp_path):
    own = loading.both_towers(MODEL).state_dict()
    own |= {f"visual.{name}": x for name, x in THETA.items()}
    assert "text tower" not in notes(compared(own, tmp_path))
    half = {n: x.half() if x.is_floating_point() else x for n, x in own.items()}
    assert "text tower" not in notes(compared(half, tmp_path))
    scale = own | {"logit_scale": own["logit_scale"] + 1}
    assert "text tower" not in notes(compared(scale, tmp_path))  # no prediction changes
    tuned = own | {"ln_final.weight": own["ln_final.weight"] + 0.1}
    told = notes(compared(tuned, tmp_path))
    assert "its text tower is not that of mini_xs (pretrained): 1 tensors differ" in told
    base = saved(tuned | {f"visual.{name}": x for name, x in BASE.items()}, tmp_path / "base.pt")
    assert "text tower" not in notes(compared(tuned, tmp_path, base=base))
    assert "its text tower is not that of base.pt" in notes(compared(own, tmp_path, base=base))
    short = own | {"positional_embedding": own["positional_embedding"][1:]}
    assert "1 tensors differ (positional_embedding)" in notes(compared(short, tmp_path))


def test_vectors_of_two_tasks_in_one_direction_are_found():
    def source(name, vector, **more):
        about = {"task": name, "sha256": name, **more}
        return merged.Source(name=name, vector=TaskVector(vector), model=MODEL, **about)

    a, b = {"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([4.0, 3.0])}  # cosine 24 / 25
    other = {"w": torch.tensor([4.0, -3.0]), "v": torch.ones(2)}
    listed = [source("a", a), source("b", b), source("c", other)]
    ((one, two, cosine),) = merged.parallel(listed, 0.8)
    assert (one.name, two.name, cosine) == ("a", "b", pytest.approx(0.96, rel=1e-6))
    assert not merged.parallel(listed, 0.97)
    assert not merged.parallel([source("a", a), source("d", a, sha256="a")], 0.8)  # copies
    assert not merged.parallel([source("a", a), source("d", b, task="a")], 0.8)  # two seeds
