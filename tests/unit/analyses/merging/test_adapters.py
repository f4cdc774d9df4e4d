"""Adapters of peft: read exactly, merged, and written again."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import tasklab
from tasklab.analyses.merging import adapters
from tests.helpers import refuses


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.q, self.v, self.score = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.score(self.v(torch.tanh(self.q(self.embed(x)))).mean(1))


@pytest.fixture
def base():
    torch.manual_seed(0)
    return Net().state_dict()


def written(folder, tensors, **config):
    folder.mkdir(parents=True)
    given = {"peft_type": "LORA", "r": 2, "lora_alpha": 6} | config
    (folder / "adapter_config.json").write_text(json.dumps(given))
    save_file(
        {f"base_model.model.{n}": x for n, x in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    return folder


def factors(module, rows, columns, r=2, seed=1):
    draw = torch.Generator().manual_seed(seed)
    return {
        f"{module}.lora_A.weight": 0.1 * torch.randn(r, columns, generator=draw),
        f"{module}.lora_B.weight": 0.1 * torch.randn(rows, r, generator=draw),
    }


def product(tensors, module):
    return tensors[f"{module}.lora_B.weight"] @ tensors[f"{module}.lora_A.weight"]


def test_an_adapter_adds_its_scaled_product(base, tmp_path):
    tensors = factors("q", 8, 6) | factors("v", 6, 8, r=3)
    place = written(
        tmp_path / "a", tensors, rank_pattern={"v": 3}, alpha_pattern={"v": 12},
    )  # fmt: skip
    merged = tasklab.merge(base, [place])
    torch.testing.assert_close(merged["q.weight"], base["q.weight"] + 3 * product(tensors, "q"))
    torch.testing.assert_close(merged["v.weight"], base["v.weight"] + 4 * product(tensors, "v"))
    for name in base:
        if name not in ("q.weight", "v.weight"):
            assert torch.equal(merged[name], base[name])
    rooted = written(tmp_path / "b", tensors, rank_pattern={"v": 3}, use_rslora=True)
    merged = tasklab.merge(base, [rooted])
    torch.testing.assert_close(
        merged["q.weight"], base["q.weight"] + 6 / 2**0.5 * product(tensors, "q")
    )


def test_turned_embeddings_saved_modules_and_biases_are_read(base, tmp_path):
    q = factors("q", 8, 6)
    place = written(tmp_path / "a", q, fan_in_fan_out=True)  # W is stored inputs x outputs
    merged = tasklab.merge({"q.weight": base["q.weight"].T.contiguous()}, [place])
    torch.testing.assert_close(merged["q.weight"].T, base["q.weight"] + 3 * product(q, "q"))

    A, B = 0.1 * torch.randn(2, 7), 0.1 * torch.randn(6, 2)
    head = {"score.weight": torch.randn(3, 6), "score.bias": torch.randn(3)}
    extra = {
        "embed.lora_embedding_A": A,
        "embed.lora_embedding_B": B,
        "q.lora_B.bias": torch.ones(8),
    }
    place = written(tmp_path / "b", q | extra | head)
    merged = tasklab.merge(base, [place], unrelated=True)
    torch.testing.assert_close(merged["embed.weight"], base["embed.weight"] + 3 * (B @ A).T)
    torch.testing.assert_close(merged["q.bias"], base["q.bias"] + 3)
    for name, tensor in head.items():
        torch.testing.assert_close(merged[name], tensor)
    older = {n.replace("score.", "score.modules_to_save."): x for n, x in head.items()}
    merged = tasklab.merge(base, [written(tmp_path / "c", older)], unrelated=True)
    torch.testing.assert_close(merged["score.bias"], head["score.bias"])


def test_adapters_are_merged_on_what_one_of_them_changes(base, tmp_path):
    one = written(tmp_path / "a", factors("q", 8, 6, seed=1))
    two = written(tmp_path / "b", factors("q", 8, 6, seed=2) | factors("v", 6, 8, seed=3))
    merged = tasklab.merge(base, [one, two], "ties", alpha=1.0, keep=1.0)
    whole = [tasklab.merge(base, [place]) for place in (one, two)]
    same = tasklab.merge(base, whole, "ties", alpha=1.0, keep=1.0)
    for name in base:
        torch.testing.assert_close(merged[name], same[name])
    trimmed = tasklab.merge(base, [one], "ties", alpha=1.0, keep=0.25)
    changed = (trimmed["q.weight"] - base["q.weight"] != 0).float().mean()
    assert changed == 0.25  # of the adapted weights, not of all


def test_a_merged_change_is_an_adapter_again(base, tmp_path, caplog):
    caplog.set_level("INFO", "tasklab")
    places = [
        written(tmp_path / str(seed), factors("q", 8, 6, seed=seed) | factors("v", 6, 8, seed=seed))
        for seed in (1, 2)
    ]
    expected = tasklab.merge(base, places, alpha=0.5)
    out = tmp_path / "merged"
    assert tasklab.merge(base, places, alpha=0.5, rank=4, out=out) == out
    again = tasklab.merge(base, [out])
    for name, tensor in expected.items():
        torch.testing.assert_close(again[name], tensor, atol=1e-6, rtol=1e-5)
    assert "rank 4 loses 0.0 %" in caplog.text
    tasklab.merge(base, places, alpha=0.5, rank=1, out=tmp_path / "small")
    change = expected["q.weight"] - base["q.weight"]
    s = torch.linalg.svdvals(change)
    kept = tasklab.merge(base, [tmp_path / "small"])["q.weight"] - base["q.weight"]
    torch.testing.assert_close((change - kept).norm(), s[1:].norm(), atol=1e-6, rtol=1e-4)
    tensors = load_file(tmp_path / "small" / "adapter_model.safetensors")
    assert {tuple(x.shape) for n, x in tensors.items() if "lora_A" in n} == {(1, 6), (1, 8)}


def test_what_is_no_lora_of_this_base_is_refused(base, tmp_path):
    def refused(match, name, tensors, **config):
        place = written(tmp_path / name, tensors, **config)
        refuses(match, tasklab.merge, base, [place])

    q = factors("q", 8, 6)
    refused("kind 'LOHA'", "a", q, peft_type="LOHA")
    refused("DoRA", "b", q, use_dora=True)
    refused("DoRA", "c", q | {"q.lora_magnitude_vector": torch.ones(8)})
    refused("half of the factors", "d", {"q.lora_A.weight": q["q.lora_A.weight"]})
    refused("changes .*other.weight.*which the base lacks", "e", factors("other", 8, 6))
    refused("of another base", "f", factors("q", 8, 5))
    refused("of another base", "g", {"score.weight": torch.ones(4, 6)})
    place = written(tmp_path / "h", q)
    refuses("give the base", tasklab.merge, None, [place, place], "average")
    refuses("give out", tasklab.merge, base, [place], rank=2)
    saved = written(tmp_path / "i", {"score.bias": torch.ones(3)})
    refuses(
        "has no place for it", tasklab.merge, base, [saved], rank=2, out=tmp_path / "no",
        unrelated=True,
    )  # fmt: skip
    assert not (tmp_path / "no").exists()
    (tmp_path / "h" / adapters.CONFIG).write_text("[" * 10_000)
    refuses("nested too deeply", tasklab.merge, base, [tmp_path / "h"])
    (tmp_path / "h" / adapters.CONFIG).write_text("{")
    refuses("cannot be read", tasklab.merge, base, [place])


@pytest.fixture
def peft():
    return pytest.importorskip("peft", reason="peft is no dependency: install it to compare")


def trained(peft, net, folder, **more):
    """Return two adapters of peft, of which every number is random, and their merged weights."""
    places, merged = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        config = peft.LoraConfig(
            r=2, lora_alpha=6, rank_pattern={"v": 3}, alpha_pattern={"q": 5},
            init_lora_weights=False, **more,
        )  # fmt: skip
        fresh = Net()
        fresh.load_state_dict(net.state_dict())
        model = peft.get_peft_model(fresh, config)
        model.save_pretrained(folder / str(seed))
        places.append(folder / str(seed))
        merged.append(model.merge_and_unload().state_dict())
    return places, merged


@pytest.mark.parametrize("rooted", [False, True])
def test_weights_equal_those_of_pefts_merge_and_unload(peft, tmp_path, rooted):
    net = Net()
    more = {"target_modules": ["q", "v", "embed"], "modules_to_save": ["score"]}
    places, merged = trained(peft, net, tmp_path, use_rslora=rooted, **more)
    for place, expected in zip(places, merged, strict=True):
        found = tasklab.merge(net, [place], unrelated=True)
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor)


def test_a_sum_equals_pefts_add_weighted_adapter(peft, tmp_path):
    net = Net()
    places, _ = trained(peft, net, tmp_path, target_modules=["q", "v"])
    plain = Net()
    plain.load_state_dict(net.state_dict())
    model = peft.PeftModel.from_pretrained(plain, places[0], adapter_name="a")
    model.load_adapter(places[1], adapter_name="b")
    model.add_weighted_adapter(["a", "b"], [0.3, 0.3], "sum", combination_type="cat")
    model.set_adapter("sum")
    expected = model.merge_and_unload(adapter_names=["sum"]).state_dict()
    found = tasklab.merge(net, places, alpha=0.3, unrelated=True)
    for name in ("q.weight", "v.weight"):
        torch.testing.assert_close(found[name], expected[name])


def test_peft_reads_a_merged_adapter(peft, tmp_path):
    net = Net()
    places, _ = trained(peft, net, tmp_path, target_modules=["q", "v"])
    out = tmp_path / "merged"
    tasklab.merge(net, places, alpha=0.3, rank=7, out=out, unrelated=True)
    expected = tasklab.merge(net, places, alpha=0.3, unrelated=True)
    plain = Net()
    plain.load_state_dict(net.state_dict())
    found = peft.PeftModel.from_pretrained(plain, out).merge_and_unload().state_dict()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        {"r": 0}, {"r": None}, {"r": True}, {"lora_alpha": "6"}, {"lora_alpha": float("nan")},
        {"rank_pattern": {"(": 3}}, {"rank_pattern": {"q": 0}}, {"rank_pattern": ["q"]},
        {"alpha_pattern": {"q": "8"}},
    ],
)  # fmt: skip
def test_settings_without_a_rank_or_alpha_are_refused(config, base, tmp_path):
    place = written(tmp_path / "a", factors("q", 8, 6), **config)
    told = refuses("positive number", tasklab.merge, base, [place])
    assert "adapter_config.json" in told and next(iter(config)) in told


@pytest.mark.parametrize(
    ("shapes", "match"),
    [
        ([(), ()], "q.lora_A.weight, .*q.lora_B.weight, which is no matrix of LoRA"),
        ([(2,), (8, 2)], "q.lora_A.weight, which is no matrix of LoRA"),
        ([(2, 6), (8, 2), (1,)], r"q.bias'? by a tensor \(1,\), where the base has \(8,\)"),
    ],
)
def test_factors_of_impossible_shapes_are_refused(shapes, match, base, tmp_path):
    parts = ("lora_A.weight", "lora_B.weight", "lora_B.bias")[: len(shapes)]
    named = {f"q.{one}": torch.ones(x) for one, x in zip(parts, shapes, strict=True)}
    refuses(match, tasklab.merge, base, [written(tmp_path / "a", named)])


def test_an_adapter_whose_base_was_changed_or_is_not_added_to_is_refused(base, tmp_path):
    for i, init in enumerate(("pissa_niter_4", "olora", "loftq")):
        place = written(tmp_path / f"s{i}", factors("q", 8, 6), init_lora_weights=init)
        refuses(f"began with '{init}', which changed the base", tasklab.merge, base, [place])
    place = written(tmp_path / "repeated", factors("q", 8, 6), layer_replication=[[0, 1]])
    refuses("has layer_replication", tasklab.merge, base, [place])
    place = written(tmp_path / "plain", factors("q", 8, 6), init_lora_weights="gaussian")
    assert tasklab.merge(base, [place])


def test_an_adapter_is_neither_written_over_nor_lost_on_whole_numbers(base, tmp_path):
    place = written(tmp_path / "a", factors("q", 8, 6))
    refuses("is there already", tasklab.merge, base, [place], rank=2, out=place)
    assert len([*place.iterdir()]) == 2
    (tmp_path / "file").touch()
    refuses("is there already", tasklab.merge, base, [place], rank=2, out=tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert tasklab.merge(base, [place], rank=2, out=tmp_path / "empty") == tmp_path / "empty"
    whole = base | {"q.weight": base["q.weight"].to(torch.int8)}
    refuses("changes q.weight, of whole", tasklab.merge, whole, [place])


def test_an_adapter_of_one_tied_name_changes_it_alone(base, tmp_path):
    tied = base | {"head.weight": base["q.weight"]}
    tensors = factors("head", 8, 6)
    merged = tasklab.merge(tied, [written(tmp_path / "a", tensors)])
    torch.testing.assert_close(
        merged["head.weight"], base["q.weight"] + 3 * product(tensors, "head")
    )
    assert torch.equal(merged["q.weight"], base["q.weight"])


class Conv1D(nn.Module):
    """A linear layer whose weight is stored inputs x outputs, as transformers' of GPT-2."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))


@pytest.mark.parametrize("told", [True, False])  # peft leaves what the last layer needs
def test_shapes_tell_what_is_stored_inputs_by_outputs(told, tmp_path):
    torch.manual_seed(0)
    net = nn.ModuleDict(
        {"a": nn.ModuleDict({"c": Conv1D(6, 6), "q": nn.Linear(6, 6)}),
         "b": nn.ModuleDict({"c": Conv1D(8, 6), "o": nn.Linear(6, 8)})}
    )  # fmt: skip
    state = net.state_dict()
    known = factors("a.c", 6, 6) | factors("b.c", 8, 6) | factors("b.o", 8, 6)
    place = written(tmp_path / "known", known, fan_in_fan_out=told)
    for base in (net, state):
        merged = tasklab.merge(base, [place])
        for name in ("a.c", "b.c"):
            found = merged[f"{name}.weight"] - state[f"{name}.weight"]
            torch.testing.assert_close(found, 3 * product(known, name).T, atol=1e-6, rtol=1e-5)
        found = merged["b.o.weight"] - state["b.o.weight"]
        torch.testing.assert_close(found, 3 * product(known, "b.o"), atol=1e-6, rtol=1e-5)
    square = known | factors("a.q", 6, 6)  # is it as c, or as o?
    place = written(tmp_path / "square", square, fan_in_fan_out=told)
    refuses("square 'a.q.weight' is stored inputs x outputs", tasklab.merge, state, [place])
    found = tasklab.merge(net, [place])["a.q.weight"] - state["a.q.weight"]
    torch.testing.assert_close(found, 3 * product(square, "a.q"), atol=1e-6, rtol=1e-5)
    out = tmp_path / "merged"
    tasklab.merge(net, [place], rank=6, out=out)
    again, expected = tasklab.merge(net, [out]), tasklab.merge(net, [place])
    for name, tensor in expected.items():
        torch.testing.assert_close(again[name], tensor, atol=1e-5, rtol=1e-5)
    assert load_file(out / "adapter_model.safetensors")[
        "base_model.model.b.c.lora_B.weight"
    ].shape == (8, 6)


def test_biases_of_adapted_layers_are_those_of_peft(base, tmp_path):
    """With bias="lora_only" peft saves them under base_layer."""
    bias = torch.randn(8)
    tensors = factors("q", 8, 6) | {"q.base_layer.bias": bias}
    place = written(tmp_path / "a", tensors, bias="lora_only")
    torch.testing.assert_close(tasklab.merge(base, [place], unrelated=True)["q.bias"], bias)


def test_what_is_half_an_adapter_or_several_is_told(base, tmp_path):
    one = written(tmp_path / "both" / "one", factors("q", 8, 6))
    refuses("folders one are adapters: give each", tasklab.merge, base, [tmp_path / "both"])
    file = one / "adapter_model.safetensors"
    merged = tasklab.merge(base, [file])
    assert torch.equal(merged["q.weight"], tasklab.merge(base, [one])["q.weight"])
    save_file(load_file(file), tmp_path / "loose.safetensors")
    refuses("holds an adapter .+adapter_config.json", tasklab.merge, base,
            [tmp_path / "loose.safetensors"])  # fmt: skip
    torch.save(load_file(file), one / "adapter_model.bin")
    file.unlink()
    for place in (one, one / "adapter_model.bin"):  # as peft wrote them before 2023
        assert torch.equal(tasklab.merge(base, [place])["q.weight"], merged["q.weight"])
    (one / "adapter_model.bin").unlink()
    refuses("adapter .*one' has no adapter_model.safetensors", tasklab.merge, base, [one])
    save_file({}, file)
    refuses("adapter_model.safetensors' holds no tensors", tasklab.merge, base, [one])
    for other in ({"target_parameters": ["experts"]}, {"trainable_token_indices": [3]}):
        place = written(tmp_path / next(iter(other)), factors("q", 8, 6), **other)
        refuses(f"has {next(iter(other))}, which", tasklab.merge, base, [place])


def test_an_adapted_embedding_says_nothing_about_square_layers(base, tmp_path):
    square = base | {"o.weight": torch.randn(6, 6)}
    embedding = {
        "embed.lora_embedding_A": torch.randn(2, 7),
        "embed.lora_embedding_B": torch.randn(6, 2),
    }
    tensors = factors("o", 6, 6)
    merged = tasklab.merge(square, [written(tmp_path / "a", tensors | embedding)], unrelated=True)
    wanted = square["o.weight"] + 3 * product(tensors, "o")
    torch.testing.assert_close(merged["o.weight"], wanted)


def test_an_adapted_multihead_attention_is_refused_by_name(base, tmp_path):
    tensors = factors("mha", 18, 6) | factors("mha.base_layer.out_proj", 6, 6)
    whole = base | {
        "mha.in_proj_weight": torch.ones(18, 6),
        "mha.out_proj.weight": torch.ones(6, 6),
    }
    refuses(
        "adapts 'mha', an nn.Multihead", tasklab.merge, whole, [written(tmp_path / "a", tensors)]
    )


def test_variants_of_lora_are_refused_by_name(base, tmp_path):
    tensors = factors("q", 8, 6)
    for name in ("kasa_config", "use_bdlora", "monteclora_config"):
        place = written(tmp_path / name, tensors, **{name: {"nblocks": 2}})
        refuses(f"has {name}, which is not read", tasklab.merge, base, [place])
    more = tensors | {"q.lora_diag": torch.ones(2)}
    refuses("has a part 'lora_diag'", tasklab.merge, base, [written(tmp_path / "diag", more)])


def test_a_saved_embedding_beside_its_factors_adds_to_them(base, tmp_path):
    """`save_embedding_layers`, as peft saves them where an embedding is adapted."""
    A, B = 0.1 * torch.randn(2, 7), 0.1 * torch.randn(6, 2)
    tensors = factors("q", 8, 6) | {"embed.lora_embedding_A": A, "embed.lora_embedding_B": B}
    for name, moved in (("same", 0.0), ("resumed", 0.25)):
        saved = {"embed.base_layer.weight": base["embed.weight"] + moved}
        place = written(tmp_path / name, tensors | saved)
        found = tasklab.merge(base, [place], unrelated=True)["embed.weight"]
        torch.testing.assert_close(found, base["embed.weight"] + moved + 3 * (B @ A).T)
        factored = adapters.opened(place, base).factors("embed.weight")
        assert (factored is None) == bool(moved)


def test_a_saved_tensor_that_is_the_bases_counts_for_nothing(base, tmp_path):
    tensors = factors("q", 8, 6)
    alone = written(tmp_path / "alone", tensors)
    beside = written(tmp_path / "beside", tensors | {"embed.weight": base["embed.weight"].clone()})
    assert adapters.opened(beside, base).changed == ("q.weight",)
    one, other = (tasklab.merge(base, [x], "ties", alpha=1.0, keep=0.25) for x in (alone, beside))
    assert torch.equal(one["q.weight"], other["q.weight"])  # what is trimmed is a share of all


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        (factors("q", 8, 6, r=3), "'q' of the adapter .* has rank 3, and 2 in its adapter_config"),
        (
            {"q.lora_A.weight": torch.ones(2, 6), "q.lora_B.weight": torch.ones(8, 1)},
            "factors of 'q.weight' .* have ranks 2 and 1, as those of a convolution in groups",
        ),
        (
            {n.replace(".weight", ".one.weight"): x for n, x in factors("q", 8, 6).items()},
            "names 'q.lora_A.one.weight' as a network in use does: save",
        ),
    ],
)
def test_factors_that_peft_does_not_load_or_merge_are_refused(tensors, match, base, tmp_path):
    refuses(match, tasklab.merge, base, [written(tmp_path / "a", tensors)])


def test_saved_running_statistics_are_refused(base, tmp_path):
    whole = base | {"bn.running_mean": torch.zeros(4), "bn.weight": torch.ones(4)}
    saved = {"bn.running_mean": torch.ones(4), "bn.weight": torch.full((4,), 1.1)}
    place = written(tmp_path / "a", factors("q", 8, 6) | saved)
    refuses("network 1 saves bn.running_mean, and a merge leaves", tasklab.merge, whole, [place])


def test_what_happens_to_one_of_two_tied_names_is_told(base, tmp_path, caplog):
    tied = base | {"head.weight": base["q.weight"]}
    tasklab.merge(tied, [written(tmp_path / "a", factors("head", 8, 6))])
    assert "a network that ties them keeps only the one that it loads last" in caplog.text


ODD = {  # options of peft's LoraConfig; all numbers of these adapters are random
    "patterns": {"target_modules": ["q", "v"], "alpha_pattern": {"^q": 3, "v": 5}},
    "biases": {"target_modules": ["q"], "bias": "all"},
    "biases of layers": {"target_modules": ["q", "v"], "bias": "lora_only"},
    "biases of factors": {"target_modules": ["q", "v"], "lora_bias": True},
    "both biases": {"target_modules": ["q"], "lora_bias": True, "bias": "all"},
    "all but one": {"target_modules": "all-linear", "exclude_modules": ["score"]},
    "expression": {"target_modules": r"q|score"},
    "saved": {"target_modules": ["v"], "modules_to_save": ["embed", "score"]},
    "mica": {"target_modules": ["q"], "init_lora_weights": "mica"},
    "orthogonal": {"target_modules": ["q"], "init_lora_weights": "orthogonal"},
}


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("odd", ODD)
def test_odd_adapters_equal_those_of_peft(peft, odd, stored, tmp_path):
    torch.manual_seed(0)
    net, fresh = Net(), Net()
    fresh.load_state_dict(net.state_dict())
    model = peft.get_peft_model(fresh, peft.LoraConfig(r=2, lora_alpha=7, **ODD[odd]))
    for parameter in filter(lambda one: one.requires_grad, model.parameters()):
        parameter.data += 0.05 * torch.randn(parameter.shape)
    model.to(stored).save_pretrained(tmp_path)
    again = Net()
    again.load_state_dict(net.state_dict())
    expected = peft.PeftModel.from_pretrained(again, tmp_path).merge_and_unload().state_dict()
    found = tasklab.merge(net, [tmp_path], unrelated=True)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor)
