"""Merges of networks that no table lists: state dicts, modules, files."""

import json
import weakref

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

import tasklab
from tasklab import TaskVector
from tasklab.analyses import merging
from tasklab.storage import files, seals
from tests.helpers import refuses

FREE = [name for name, method in merging.METHODS.items() if not method.needs]
ALPHA = {"average": 1.0}


class Tiny(nn.Module):
    """A language model: tied embeddings, blocks, a convolution with running statistics."""

    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(6), "up": nn.Linear(6, 9), "down": nn.Linear(9, 6)})
            for _ in range(2)
        )
        self.conv, self.bn = nn.Conv1d(6, 6, 3), nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool))


@pytest.fixture
def base():
    torch.manual_seed(0)
    return Tiny()


def tuned(base, seed, scale=0.1):
    torch.manual_seed(seed)
    module = Tiny()
    module.load_state_dict(base.state_dict())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += scale * torch.randn_like(parameter) * parameter.std().nan_to_num(1.0)
        module.bn.running_mean += seed
    return module


@pytest.fixture
def models(base):
    return [tuned(base, seed) for seed in (1, 2, 3)]


@pytest.mark.parametrize("method", FREE)
def test_every_rule_that_needs_no_images_merges_a_module_as_its_vectors(base, models, method):
    alpha = ALPHA.get(method, 0.4)
    merged = tasklab.merge(base, models, method, alpha=alpha)
    theta0 = base.state_dict()
    assert list(merged) == list(theta0)
    names = [n for n, _ in base.named_parameters()]
    vectors = [TaskVector({n: m.state_dict()[n] - theta0[n] for n in names}) for m in models]
    tau = merging.merge(method, vectors, alpha=alpha)
    tables = method in ("tsv_m", "iso_c", "iso_cts", "wudi_exact", "wudi_descent")
    for name in names:
        torch.testing.assert_close(merged[name], theta0[name] + tau[name])
        if tables and name == "wte.weight":
            mean = alpha * sum(v[name] for v in vectors) / 3
            torch.testing.assert_close(tau[name], mean)
    assert torch.equal(merged["head.weight"], merged["wte.weight"])  # tied, as in the base
    for name in ("mask", "bn.running_mean", "bn.num_batches_tracked"):
        assert torch.equal(merged[name], theta0[name])
    fresh = Tiny()
    fresh.load_state_dict(merged)


def written(module, folder, shards=1):
    folder.mkdir()
    state = {n: x.clone() for n, x in module.state_dict().items() if n != "head.weight"}
    names = list(state)
    for shard in range(shards):
        own = {n: state[n] for n in names[shard::shards]}
        save_file(own, folder / f"model-{shard + 1:05}-of-{shards:05}.safetensors")
    (folder / "config.json").write_text(json.dumps({}))
    return folder


@pytest.mark.parametrize("method", FREE)
def test_files_are_merged_a_tensor_at_a_time(base, models, tmp_path, monkeypatch, method):
    alive, most = weakref.WeakSet(), []
    read = files.Files.__getitem__

    def watched(self, name):
        tensor = read(self, name)
        alive.add(tensor)
        most.append(len(alive))
        return tensor

    monkeypatch.setattr(files.Files, "__getitem__", watched)
    start = written(base, tmp_path / "base", shards=2)
    each = [written(m, tmp_path / str(n), n + 1) for n, m in enumerate(models)]
    out = tmp_path / "merged.safetensors"
    alpha = ALPHA.get(method, 0.4)
    assert tasklab.merge(start, each, method, alpha=alpha, out=out) == out
    plain = [
        {n: x for n, x in module.state_dict().items() if n != "head.weight"}
        for module in (base, *models)
    ]
    expected = tasklab.merge(plain[0], plain[1:], method, alpha=alpha)
    found = load_file(out)
    assert set(found) == set(expected) and max(most) <= 2 * len(models) + 2
    for name, one in expected.items():
        torch.testing.assert_close(found[name], one)


def test_a_file_keeps_the_types_of_the_base(tmp_path):
    base = {
        "w": torch.randn(4, 4).bfloat16(), "n": torch.arange(3), "h": torch.randn(3).half(),
        "d": torch.randn(2, dtype=torch.float64), "e": torch.zeros(0, 3),
    }  # fmt: skip
    other = {n: x + 0.125 if x.is_floating_point() else x + 1 for n, x in base.items()}
    out = tmp_path / "x.safetensors"
    save_file(base, tmp_path / "base.safetensors")
    save_file(other, tmp_path / "a.safetensors")
    tasklab.merge(tmp_path / "base.safetensors", [tmp_path / "a.safetensors"], out=out)
    found = load_file(out)
    for name, tensor in base.items():
        assert found[name].dtype == tensor.dtype
        expected = other[name] if tensor.is_floating_point() else tensor
        torch.testing.assert_close(found[name], expected)


def test_patterns_change_what_is_a_matrix(base, models):
    def merged(**patterns):
        return tasklab.merge(base, models, "iso_c", alpha=0.4, **patterns)

    usual = merged()
    assert not torch.equal(merged(matrices="^wte")["wte.weight"], usual["wte.weight"])
    tabled = merged(tables=r"up\.weight$")
    name = "blocks.0.up.weight"
    mean = sum(m.state_dict()[name] - base.state_dict()[name] for m in models) / 3
    torch.testing.assert_close(tabled[name], base.state_dict()[name] + 0.4 * mean)
    assert torch.equal(tabled["blocks.0.down.weight"], usual["blocks.0.down.weight"])
    refuses("matrices must be a pattern", merged, matrices="(")
    assert torch.equal(merged()["wte.weight"], usual["wte.weight"])  # nothing stays set


@pytest.mark.parametrize("method", ["tsv_m", "dc_merge", "iso_cts"])
def test_a_matrix_of_fewer_directions_than_networks_is_merged(method, caplog):
    """A head of one output; TSV-M takes the mean of it, as of what is no matrix."""
    caplog.set_level("INFO", "tasklab")
    torch.manual_seed(0)
    base = {"up.weight": torch.randn(9, 6), "score.weight": torch.randn(1, 6)}
    states = [{n: x + 0.1 * torch.randn_like(x) for n, x in base.items()} for _ in range(3)]
    merged = tasklab.merge(base, states, method, alpha=1.0)
    if method != "iso_cts":
        mean = sum(state["score.weight"] for state in states) / 3
        torch.testing.assert_close(merged["score.weight"], mean)
        assert "score.weight has 1 directions, for 3 tasks: their mean" in caplog.text
    alone = {n: x for n, x in base.items() if n != "score.weight"}
    rest = tasklab.merge(alone, [{n: one[n] for n in alone} for one in states], method, alpha=1.0)
    torch.testing.assert_close(merged["up.weight"], rest["up.weight"])


@pytest.mark.parametrize("front", ["h", "encoder.layer", "layers"])
def test_blocks_are_found_by_the_usual_names(front):
    torch.manual_seed(0)
    base = {f"{front}.{i}.up.weight": torch.randn(4, 4) for i in range(3)}
    states = [{n: x + 0.1 * torch.randn_like(x) for n, x in base.items()} for _ in range(2)]
    merged = tasklab.merge(base, states, "lines", alpha=0.5, beta=2.0)
    for i, (name, start) in enumerate(base.items()):
        change = sum(state[name] - start for state in states)
        torch.testing.assert_close(merged[name], start + 0.5 * (1 + 2.0 * i / 2) * change)


def test_what_is_no_state_dict_is_told_with_the_remedy(base, tmp_path):
    state = base.state_dict()
    told = refuses("model of a network is a dict", tasklab.merge, {"model": state}, [state])
    assert "checkpoint['model']" in told
    whole = {"epoch": 3, "state_dict": state}
    refuses(r"checkpoint\['state_dict'\]", tasklab.merge, base, [whole])
    refuses("no tensor but ndarray", tasklab.merge, {"w": torch.ones(2).numpy()}, [state])
    refuses("has names, and 0 is none", tasklab.merge, {0: torch.ones(2)}, [state])
    refuses("a file in a folder", tasklab.merge, base, [state], out=tmp_path)
    refuses("a file in a folder", tasklab.merge, base, [state], out=tmp_path / "x" / "y")


def test_wrappers_of_base_and_network_may_differ(base, models):
    expected = tasklab.merge(base, models, "ties", alpha=0.6)
    fronts = ("model.module.", "model.", "module._orig_mod.", "")
    start, *each = (
        {f"{front}{n}": x for n, x in one.state_dict().items()}
        for front, one in zip(fronts, (base, *models), strict=True)
    )
    found = tasklab.merge(start, each, "ties", alpha=0.6)
    for name, tensor in expected.items():
        assert torch.equal(found[f"model.module.{name}"], tensor)


def test_an_average_needs_no_base(models):
    merged = tasklab.merge(None, models, "average")
    each = [m.state_dict()["blocks.1.up.weight"] for m in models]
    torch.testing.assert_close(merged["blocks.1.up.weight"], sum(each) / 3)
    refuses("give the base", tasklab.merge, None, models, "ties", alpha=1.0)


def test_what_does_not_meet_is_refused(base, models, tmp_path):
    state = base.state_dict()
    refuses("as a list", tasklab.merge, base, models[0], alpha=1.0)
    refuses("no networks to merge", tasklab.merge, base, [], alpha=1.0)
    refuses("give alpha: no recorded", tasklab.merge, base, models, "ties")
    refuses("reads images", tasklab.merge, base, models, "regmean", alpha=1.0)
    refuses("unknown method", tasklab.merge, base, models, "tise", alpha=1.0)
    refuses("unknown option", tasklab.merge, base, models, "ties", alpha=1.0, kep=0.2)
    lacking = {n: x for n, x in state.items() if n != "conv.bias"}
    refuses("network 2 lacks", tasklab.merge, base, [models[0], lacking], alpha=1.0)
    more = state | {"extra": torch.ones(2)}
    refuses("network 1 has .*extra.* beside", tasklab.merge, base, [more], alpha=1.0)
    other = state | {"conv.bias": torch.ones(7)}
    refuses("different architectures", tasklab.merge, base, [other], alpha=1.0)
    torch.manual_seed(9)
    refuses("is no change of the base", tasklab.merge, base, [models[0], Tiny()], alpha=1.0)
    broken = state | {"conv.bias": torch.full((6,), float("nan"))}
    for method in ("arithmetic", "ties", "tsv_m"):  # unrelated=True excuses a distance, no NaN
        for some in ({}, {"unrelated": True}):
            told = refuses("not finite", tasklab.merge, base, [broken], method, alpha=1.0, **some)
            assert "'conv.bias' of network 1" in told
    refuses("no file or folder", tasklab.merge, tmp_path / "x", models, alpha=1.0)
    (tmp_path / "y.pt").write_bytes(b"x")
    refuses("give the state dict", tasklab.merge, tmp_path / "y.pt", models, alpha=1.0)
    (tmp_path / "y.safetensors").write_bytes(b"x")
    refuses("not a whole", tasklab.merge, tmp_path / "y.safetensors", models, alpha=1.0)
    refuses(r"\.safetensors", tasklab.merge, base, models, alpha=1.0, out=tmp_path / "x.pt")
    assert {file.name for file in tmp_path.iterdir()} == {"y.pt", "y.safetensors"}


def test_another_base_is_seen_by_the_direction(base):
    real = tuned(base, 5, scale=0.3)  # what they were fine-tuned from
    models = [tuned(real, seed, scale=0.02) for seed in (1, 2)]
    refuses("changed in one direction", tasklab.merge, base, models, alpha=0.5)
    merged = tasklab.merge(base, models, alpha=0.5, unrelated=True)
    torch.testing.assert_close(
        merged["conv.bias"], sum(m.state_dict()["conv.bias"] for m in models) / 2
    )
    assert set(tasklab.merge(real, models, alpha=0.5)) == set(merged)


def test_a_merge_that_fails_leaves_no_file(base, models, tmp_path, monkeypatch):
    start = written(base, tmp_path / "base")
    each = [written(m, tmp_path / str(n)) for n, m in enumerate(models)]
    out = tmp_path / "out" / "merged.safetensors"
    out.parent.mkdir()
    out.write_bytes(b"before")
    write, count = seals.bits, [0]

    def failing(tensor):
        count[0] += 1
        if count[0] > 5:
            raise OSError(28, "No space left on device")
        return write(tensor)

    monkeypatch.setattr(seals, "bits", failing)
    refuses("Free some space", tasklab.merge, start, each, alpha=0.4, out=out)
    assert [file.name for file in out.parent.iterdir()] == ["merged.safetensors"]
    assert out.read_bytes() == b"before"


def test_a_tie_that_a_network_broke_is_not_tied_again(base, caplog):
    state = {n: x.clone() for n, x in base.state_dict().items()}
    state["head.weight"] += 0.01
    merged = tasklab.merge(base, [state], alpha=1.0)
    for name in ("head.weight", "wte.weight"):
        torch.testing.assert_close(merged[name], state[name])
    assert "share memory in the base and differ in network 1" in caplog.text


def test_a_tied_parameter_that_a_file_leaves_out_is_its_twin(base, models, tmp_path):
    expected = tasklab.merge(base, models, "ties", alpha=0.7)
    for number, model in enumerate([base, *models]):
        save_model(model, str(tmp_path / f"{number}.safetensors"))  # one of two tied tensors
    first, *each = [tmp_path / f"{number}.safetensors" for number in range(4)]
    assert len(load_file(first)) == len(base.state_dict()) - 1
    for start, networks in ((base, each), (first, models), (first, each)):
        merged = tasklab.merge(start, networks, "ties", alpha=0.7)
        for name, found in merged.items():
            assert torch.equal(found, expected[name]), name
    out, module = tmp_path / "out.safetensors", Tiny()
    load_model(module, str(tasklab.merge(first, each, "ties", alpha=0.7, out=out)))
    assert torch.equal(module.head.weight, expected["wte.weight"])
    state = {name: x.clone() for name, x in models[0].state_dict().items()}
    state["head.weight"] += 0.01  # no longer the twin of what the base's file has
    refuses(
        r"network 1 has (head|wte).weight beside", lambda: tasklab.merge(first, [state], alpha=1.0)
    )


def test_what_is_no_parameter_stays_only_where_networks_agree(base, models):
    def named(change, x):
        each = [{**m.state_dict(), "x": x.clone()} for m in models]
        each[1]["x"] = change(x)
        return tasklab.merge({**base.state_dict(), "x": x}, each, alpha=0.4)

    same, more = torch.clone, lambda x: x + 1
    mask = torch.full((3, 3), float("-inf")).triu(1)
    for x in (mask, torch.ones(2, dtype=torch.complex64), torch.ones(2, 2, dtype=torch.int8)):
        assert torch.equal(named(same, x)["x"], x)
    mean = tasklab.merge(None, [{"x": mask}] * 2, "average")
    assert torch.equal(mean["x"], mask)
    assert torch.equal(named(more, torch.arange(3))["x"], torch.arange(3))  # a counter
    for x in (torch.ones(2, dtype=torch.complex64), torch.ones(2, 2, dtype=torch.int8)):
        refuses("network 2 changes x, of whole or complex", named, more, x)
    refuses("network 2 changes x", named, lambda x: x.to(torch.int8), torch.zeros(2))
    refuses("not finite", named, lambda x: x.triu(2), mask)
    for x in (torch.ones(2, device="meta"), torch.eye(2).to_sparse()):
        refuses("x of a state dict has no numbers", named, same, x)


def test_names_may_all_begin_with_a_wrappers(base, models):
    plain = tasklab.merge(base, models, alpha=0.4)
    wrapped = [nn.ModuleDict({"module": model}) for model in models]
    for start, each in ((base, wrapped), (nn.ModuleDict({"_orig_mod": base}), models)):
        merged = tasklab.merge(start, each, alpha=0.4)
        assert list(merged) == list(start.state_dict())
        for name, x in zip(merged, plain.values(), strict=True):
            torch.testing.assert_close(merged[name], x)
    odd = {f"module.{n}" if n != "conv.bias" else n: x for n, x in base.state_dict().items()}
    refuses("network 1 lacks", tasklab.merge, base, [odd], alpha=1.0)


def test_only_the_files_of_a_network_are_read(base, models, tmp_path):
    start = written(base, tmp_path / "base", shards=2)
    each = [written(m, tmp_path / str(n), shards=2) for n, m in enumerate(models)]
    expected = tasklab.merge(start, each, alpha=0.4)
    for name in ("._model-00001-of-00002.safetensors", "._model.safetensors.index.json"):
        (start / name).write_bytes(b"of macOS")
    assert tasklab.merge(start, each, alpha=0.4).keys() == expected.keys()
    parts = {n: name.name for name in sorted(start.glob("model*")) for n in load_file(name)}
    index = start / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": parts}))
    save_file({"other": torch.ones(1)}, start / "consolidated.safetensors")
    found = tasklab.merge(start, each, alpha=0.4)
    assert found.keys() == expected.keys()
    (start / "other.safetensors.index.json").write_text("{}")
    refuses("has 2 indexes", tasklab.merge, start, each, alpha=0.4)
    (start / "other.safetensors.index.json").unlink()
    (start / "model-00001-of-00002.safetensors").rename(tmp_path / "part")
    refuses("names 2 files, of which 1 are not", tasklab.merge, start, each, alpha=0.4)
    index.rename(tmp_path / "index")
    refuses("parts .* without model-00001-of", tasklab.merge, start, each, alpha=0.4)
    (tmp_path / "part").rename(start / "model-00001-of-00002.safetensors")
    (tmp_path / "index").rename(index)
    for folder in (start, *each):  # so that all have the same names
        (folder / "model-00002-of-00002.safetensors").unlink()
    refuses("names 2 files, of which 1 are not beside", tasklab.merge, start, each, alpha=0.4)
    index.unlink()
    (start / "consolidated.safetensors").unlink()
    refuses("1 of 2 parts of a network, without", tasklab.merge, start, each, alpha=0.4)


def test_no_input_is_written_over(base, models, tmp_path):
    start = written(base, tmp_path / "base")
    other = tmp_path / "a.safetensors"
    save_file({n: x for n, x in models[0].state_dict().items() if n != "head.weight"}, other)
    (tmp_path / "link.safetensors").symlink_to(other)
    before = other.read_bytes()
    for name in ("a", "link", "base/merged"):
        out = tmp_path / f"{name}.safetensors"
        refuses("an input", tasklab.merge, start, [other], alpha=1.0, out=out)
    assert other.read_bytes() == before and len([*start.iterdir()]) == 2


def test_equal_networks_and_the_base_itself_are_told(base, models, caplog):
    same = [models[0], models[1], {n: x.clone() for n, x in models[0].state_dict().items()}]
    refuses("networks 1 and 3 are equal", tasklab.merge, base, same, alpha=0.4)
    assert tasklab.merge(base, same, alpha=0.4, unrelated=True) and not caplog.text
    assert tasklab.merge(base, [models[0], base], alpha=0.4)
    assert "network 2 has the base's parameters: its change is 0" in caplog.text


def test_embeddings_are_tables_by_name_or_type():
    torch.manual_seed(0)
    theta0 = {n: torch.randn(8, 6) for n in ("tok_emb.weight", "emb.weight", "up.weight", "words")}
    each = [{n: x + 0.1 * torch.randn(8, 6) for n, x in theta0.items()} for _ in range(2)]
    merged = tasklab.merge(theta0, each, "tsv_m", alpha=1.0)
    means = {n: sum(one[n] for one in each) / 2 for n in theta0}
    same = [n for n in theta0 if torch.allclose(merged[n], means[n], atol=1e-6)]
    assert same == ["tok_emb.weight", "emb.weight"]

    def language(at):
        module = nn.Module()
        module.out, module.words = nn.Linear(6, 8, bias=False), nn.Embedding(8, 6)
        module.out.weight = module.words.weight  # the layer's name comes first
        module.words.weight.data = at["words"].clone()
        return module

    made = tasklab.merge(language(theta0), [language(one) for one in each], "tsv_m", alpha=1.0)
    torch.testing.assert_close(made["words.weight"], means["words"])
    assert torch.equal(made["out.weight"], made["words.weight"])


@pytest.mark.parametrize("method", ["dare", "tsv_m", "ties"])
def test_an_embedding_that_is_saved_twice_stays_tied(base, models, tmp_path, method):
    places = [tmp_path / f"{i}.safetensors" for i in range(4)]
    for place, one in zip(places, [base, *models], strict=True):
        save_file({n: x.clone() for n, x in one.state_dict().items()}, place)
    merged = tasklab.merge(places[0], places[1:], method, alpha=1.0)
    assert torch.equal(merged["head.weight"], merged["wte.weight"])
    held = tasklab.merge(base, models, method, alpha=1.0)
    if method != "dare":  # whose draws depend on the names
        for name in held:
            torch.testing.assert_close(merged[name], held[name])


def test_wudi_merges_all_matrices_of_blocks():
    torch.manual_seed(0)
    names = ["blocks.0.attn.qkv.weight", "blocks.0.mlp.0.weight", "blocks.1.mlp.2.weight", "head"]
    theta0 = {n: torch.randn(6, 6) for n in names}
    each = [{n: x + 0.1 * torch.randn(6, 6) for n, x in theta0.items()} for _ in range(2)]
    merged = tasklab.merge(theta0, each, "wudi", alpha=1.0)
    assert [n for n in names if torch.equal(merged[n], theta0[n])] == ["head"]


def test_arithmetic_has_a_coefficient_of_each_network(base, models):
    each, theta0 = [m.state_dict() for m in models], base.state_dict()
    merged = tasklab.merge(base, models, alpha=[0.5, 0.0, -0.25])
    for name in ("wte.weight", "bn.weight", "blocks.1.up.bias"):
        wanted = theta0[name] + 0.5 * (each[0][name] - theta0[name])
        wanted -= 0.25 * (each[2][name] - theta0[name])
        torch.testing.assert_close(merged[name], wanted)
    refuses("cannot have 2 coefficients", tasklab.merge, base, models, alpha=[0.5, 0.5])
    refuses("alpha of ties is one number", tasklab.merge, base, models, "ties", alpha=[1, 1, 1])


def test_wrappers_within_names_are_left_out(base, models):
    one, two = (m.state_dict() for m in models[:2])
    inner = {n.replace("blocks.0.", "blocks.0._orig_mod."): x for n, x in one.items()}
    words = "_fsdp_wrapped_module._checkpoint_wrapped_module."
    fsdp = {"module." + n.replace("conv.", f"conv.{words}"): x for n, x in two.items()}
    merged = tasklab.merge(base, [inner, fsdp], alpha=0.5)
    wanted = tasklab.merge(base, models[:2], alpha=0.5)
    assert list(merged) == list(wanted)
    assert all(torch.equal(merged[name], wanted[name]) for name in wanted)


def test_buffers_may_be_missing_or_added(base, models):
    parameters = dict(models[0].named_parameters()) | {"head.weight": models[0].head.weight}
    more = {f"module.{n}": x for n, x in models[1].state_dict().items()}
    more["module.position_ids"] = torch.arange(4)
    merged = tasklab.merge(base, [parameters, more], alpha=0.5)
    wanted = tasklab.merge(base, models[:2], alpha=0.5)
    assert list(merged) == list(wanted)
    assert all(torch.equal(merged[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm", "orthogonal"])
@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
def test_factors_of_weights_are_not_merged_as_weights(norm, tmp_path):
    """The mean of g v / |v| is not that of g and v."""
    for of in (nn.utils, nn.utils.parametrizations):
        layer = nn.Sequential(getattr(of, norm)(nn.Linear(3, 3))) if hasattr(of, norm) else None
        if layer is None:
            continue
        match = r"0\..* and the like are weights that are computed from others .*: remove these"
        refuses(match, tasklab.merge, layer, [layer, layer], alpha=0.5)
        state = {n: x.contiguous() for n, x in layer.state_dict().items()}
        save_file(state, tmp_path / "a.safetensors")
        refuses(match, tasklab.merge, None, [tmp_path / "a.safetensors"], "average")
        refuses("weight.* computed from", tasklab.merge, None, [layer[0].state_dict()], "average")


@pytest.mark.parametrize(
    ("kind", "shape"), [("F4", [2, 2]), ("F32", [0, 1 << 62, 4]), ("U8", [1] * 70)]
)
def test_tensors_that_pytorch_does_not_hold_are_refused(kind, shape, tmp_path):
    few = {"F4": 2, "F32": 0, "U8": 1}[kind]
    about = json.dumps({"w": {"dtype": kind, "shape": shape, "data_offsets": [0, few]}}).encode()
    file = tmp_path / "a.safetensors"
    file.write_bytes(len(about).to_bytes(8, "little") + about + bytes(few))
    refuses(f"'w' of type {kind} and shape .* is not read", tasklab.merge, None, [file], "average")


def test_numbers_of_8_bits_and_masks_of_pruning_are_not_merged():
    few = torch.float8_e4m3fn
    base = {"w": torch.randn(2, 2).to(few), "b": torch.ones(2), "fc.weight_mask": torch.ones(2, 2)}
    moved = {"b": torch.full((2,), 1.1)}
    merged = tasklab.merge(base, [base | moved])
    assert torch.equal(merged["w"].float(), base["w"].float())
    torch.testing.assert_close(merged["b"], moved["b"])
    quantised = base | moved | {"w": torch.randn(2, 2).to(few)}
    refuses("changes w, .* 8 bits", tasklab.merge, base, [quantised])
    few = {"w": base["w"]}
    refuses("no parameters to merge; .* 8-bit floats", tasklab.merge, few, [few])
    refuses("changes w, .* 8 bits", tasklab.merge, base | {"w": torch.ones(2, 2)}, [quantised])
    pruned = base | moved | {"fc.weight_mask": torch.eye(2)}
    refuses("changes fc.weight_mask, .* mask", tasklab.merge, base, [pruned])


def test_what_a_lazy_layer_or_a_nested_tensor_has_is_refused():
    lazy, few = (
        nn.LazyLinear(3),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    )
    refuses("weight, bias of a state dict has no numbers", tasklab.merge, lazy, [lazy], alpha=1.0)
    refuses("w of a state dict .* nested", tasklab.merge, {"w": few}, [{"w": few}], alpha=1.0)


def test_a_modules_extra_state_is_no_parameter():
    class Own(nn.Linear):
        def get_extra_state(self):
            return {"scale": 1}

        def set_extra_state(self, state):
            pass

    assert list(tasklab.merge(Own(3, 2), [Own(3, 2)], unrelated=True)) == ["weight", "bias"]


@pytest.mark.parametrize("name", ["__metadata__", "a\udc80"])
def test_names_that_safetensors_cannot_hold_are_told(name, tmp_path):
    base, moved = {name: torch.ones(2)}, {name: torch.full((2,), 1.1)}
    out = tmp_path / "out.safetensors"
    refuses("safetensors cannot hold", tasklab.merge, base, [moved], out=out)
    assert not list(tmp_path.iterdir())
    whole = {"w": torch.ones(2), "z": torch.ones(2, dtype=torch.complex64)}
    tasklab.merge(whole, [whole | {"w": moved[name]}], out=out)
    assert torch.equal(load_file(out)["z"], whole["z"])


def test_a_file_that_may_not_be_read_is_told(base, tmp_path, monkeypatch):
    file = tmp_path / "base.safetensors"
    save_file({"w": torch.ones(2)}, file)
    monkeypatch.setattr(files.os, "access", lambda *_: False)  # root may read all
    refuses("cannot be read: permission denied", files.Files, file)


def test_settings_of_the_caller_do_not_enter(base, models):
    expected = tasklab.merge(base, models, "dare", alpha=1.0)
    try:
        torch.set_default_dtype(torch.float64)
        with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
            merged = tasklab.merge(base, models, "dare", alpha=1.0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(merged[name], expected[name]) for name in expected)


def test_a_task_vector_is_no_network(base, models, tmp_path):
    theta0 = {n: x.detach() for n, x in base.named_parameters()}
    vector = TaskVector({n: x.detach() - theta0[n] for n, x in models[0].named_parameters()})
    for one in (vector, vector.save(tmp_path / "v.safetensors")):
        refuses("holds a change", tasklab.merge, theta0, [one], alpha=1.0, unrelated=True)


def test_a_method_goes_by_any_of_its_names_in_all_checks():
    torch.manual_seed(0)
    base = {"w": torch.randn(6, 5)}
    each = [{"w": base["w"] + 0.1 * torch.randn(6, 5)} for _ in range(2)]
    mean = tasklab.merge(None, each, "average")["w"]
    assert torch.equal(tasklab.merge(None, each, "Model Soup")["w"], mean)  # needs no base
    in_space = tasklab.merge(base, each, "TIES-Merging", alpha=1.0, space="knots")["w"]
    assert torch.equal(in_space, tasklab.merge(base, each, "ties", alpha=1.0, space="knots")["w"])
    refuses("give alpha.*was about the best", tasklab.merge, base, each, "Task Arithmetic")
