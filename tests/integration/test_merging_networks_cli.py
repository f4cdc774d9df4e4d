"""`tasklab merge` without --model: networks that no table lists, and adapters."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import tasklab
from tasklab.__main__ import main
from tests.helpers import mistaken


@pytest.fixture
def files(tmp_path):
    torch.manual_seed(0)
    base = {
        "embed.weight": torch.randn(9, 4),
        "up.weight": torch.randn(6, 4),
        "step": torch.ones(1).long(),
    }
    save_file(base, tmp_path / "base.safetensors", metadata={"format": "pt"})
    words = []
    for name in "ab":
        other = {
            n: x + 0.1 * torch.randn(x.shape) if x.is_floating_point() else x
            for n, x in base.items()
        }
        (tmp_path / name).mkdir()
        save_file(other, tmp_path / name / "model.safetensors")
        words.append(str(tmp_path / name))
    return base, [*words, "--base", str(tmp_path / "base.safetensors")]


def test_networks_are_merged_as_in_python(files, tmp_path, capsys):
    base, words = files
    out = tmp_path / "out.safetensors"
    options = ["--method", "ties", "--option", "keep=0.5", "--alpha", "0.7"]
    assert main(["merge", *words, *options, "--out", str(out)]) == 0
    assert "TIES of 2 networks" in capsys.readouterr().out
    expected = tasklab.merge(words[3], words[:2], "ties", keep=0.5, alpha=0.7)
    found = load_file(out)
    assert set(found) == set(base)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)


def test_patterns_name_what_is_a_matrix(files, tmp_path):
    _, words = files
    for option in ([], ["--tables", r"^up\."]):
        out = tmp_path / f"{len(option)}.safetensors"
        given = ["--method", "iso_c", "--alpha", "0.7", *option, "--out", str(out)]
        assert main(["merge", *words, *given]) == 0
        pattern = option[1] if option else None
        expected = tasklab.merge(words[3], words[:2], "iso_c", alpha=0.7, tables=pattern)
        assert torch.equal(load_file(out)["up.weight"], expected["up.weight"])
    plain = load_file(tmp_path / "0.safetensors")["up.weight"]
    assert not torch.allclose(load_file(tmp_path / "2.safetensors")["up.weight"], plain)


def test_files_of_torch_are_merged_as_those_of_safetensors(files, tmp_path, capsys):
    """Also below a key and wrapped, as training scripts save them; notes tell of wrappers."""
    _, (*words, _, base) = files
    expected = tasklab.merge(base, words, "ties", keep=0.5, alpha=0.7)
    networks = [load_file(f"{word}/model.safetensors") for word in words]
    torch.save(load_file(base), tmp_path / "base.pt")
    torch.save({"model": networks[0], "epoch": 3}, tmp_path / "a.pt")
    wrapped = {f"module.{name}": x for name, x in networks[1].items()}
    torch.save({"state_dict": wrapped}, tmp_path / "b.ckpt")
    options = ["--method", "ties", "--option", "keep=0.5", "--alpha", "0.7"]
    for other in (str(tmp_path / "b.ckpt"), words[1]):
        out = tmp_path / f"{len(other)}.safetensors"
        given = [str(tmp_path / "a.pt"), other, "--base", str(tmp_path / "base.pt")]
        assert main(["merge", *given, *options, "--out", str(out)]) == 0
        found = load_file(out)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], x) for name, x in expected.items())
        assert ("names have words of wrappers" in capsys.readouterr().out) == (other != words[1])
    given = [str(tmp_path / "a.pt"), str(tmp_path / "none.pt"), "--base", str(tmp_path / "base.pt")]
    assert "none.pt" in mistaken(["merge", *given, *options], capsys)


def test_networks_of_another_base_are_merged_if_asked(files, tmp_path, capsys):
    _, (one, *_) = files
    torch.manual_seed(9)
    other = {n: torch.randn(x.shape) if x.is_floating_point() else x for n, x in files[0].items()}
    save_file(other, tmp_path / "other.safetensors")
    words = ["merge", one, str(tmp_path / "other.safetensors"), *files[1][2:], "--alpha", "1"]
    words += ["--out", str(tmp_path / "out.safetensors")]
    told = mistaken(words, capsys)
    assert "network 2 is no change of the base" in told and "or --unrelated." in told
    assert main([*words, "--unrelated"]) == 0
    capsys.readouterr()
    pair = ["merge", "Signs@nonlinear", "Places@nonlinear", "--unrelated"]
    assert "--unrelated is for networks" in mistaken(pair, capsys)


def adapter(place, seed):
    draw = torch.Generator().manual_seed(seed)
    place.mkdir()
    settings = {"peft_type": "LORA", "r": 1, "lora_alpha": 1}
    (place / "adapter_config.json").write_text(json.dumps(settings))
    factors = {"A": torch.randn(1, 4, generator=draw), "B": torch.randn(6, 1, generator=draw)}
    factors = {f"base_model.model.up.lora_{n}.weight": 0.3 * x for n, x in factors.items()}
    save_file(factors, place / "adapter_model.safetensors")
    return str(place)


def test_an_adapter_is_written_and_read(files, tmp_path, capsys):
    _, (full, _, *base) = files
    each = [adapter(tmp_path / f"adapter-{seed}", seed) for seed in (1, 2)]
    out = tmp_path / "adapter"
    given = ["--alpha", "0.5", "--rank", "2", "--json", "--out", str(out)]
    assert "no place for it" in mistaken(["merge", each[0], full, *base, *given], capsys)
    assert not out.exists()
    assert main(["merge", *each, *base, *given]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["out"] == str(out) and about["rank"] == 2 and about["networks"] == each
    expected = tasklab.merge(base[1], each, alpha=0.5)
    found = tasklab.merge(base[1], [out])
    torch.testing.assert_close(found["up.weight"], expected["up.weight"])
    before = [(file, file.read_bytes()) for file in out.iterdir()]
    assert "adapter is there already" in mistaken(["merge", *each, *base, *given], capsys)
    assert [(file, file.read_bytes()) for file in out.iterdir()] == before
    given[-1] += "-new"
    twice = ["merge", each[0], each[0], *base, *given]
    assert "networks 1 and 2 are equal" in mistaken(twice, capsys)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "give --alpha: no recorded setting"),
        (["--method", "regmean", "--alpha", "1"], "reads images"),
        (["--alpha", "1", "--search"], "give --model, or --alpha alone"),
        (["--alpha", "1", "--rank", "0"], "--rank"),
        (["--method", "ties", "--alpha", "1", "--space", "knot"], "'knots'"),
        (["--alpha", "1", "--out", "x.pt"], ".safetensors"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(files, more, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = {file.name for file in tmp_path.iterdir()}
    assert told in mistaken(["merge", *files[1], *more], capsys)
    assert {file.name for file in tmp_path.iterdir()} == before


def test_a_network_is_not_written_over(files, tmp_path, capsys):
    words = ["merge", *files[1], "--alpha", "1", "--out", str(tmp_path / "base.safetensors")]
    assert "holds something else" in mistaken(words, capsys)
    assert "--rank is for networks" in mistaken(
        ["merge", "Signs@nonlinear", "Places@nonlinear", "--rank", "2"], capsys
    )


def test_adapters_are_merged_in_a_space(files, tmp_path, capsys):
    _, (_, _, *base) = files
    words = [adapter(tmp_path / name, seed) for seed, name in enumerate("xy")]
    out = tmp_path / "core.safetensors"
    options = ["--method", "ties", "--option", "keep=0.5", "--alpha", "1", "--space", "core"]
    assert main(["merge", *words, *base, *options, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["space"] == "core"
    expected = tasklab.merge(base[1], words, "ties", keep=0.5, alpha=1.0, space="core")
    plain = tasklab.merge(base[1], words, "ties", keep=0.5, alpha=1.0)
    found = load_file(out)["up.weight"]
    assert torch.equal(found, expected["up.weight"])
    assert not torch.allclose(found, plain["up.weight"], atol=1e-3)
    wrong = ["merge", "a.st", "b.st", "--model", "mini", "--space", "knots"]
    assert "--space is for networks" in mistaken(wrong, capsys)


def test_a_merge_is_written_over_by_the_next(files, tmp_path, capsys):
    """As after a kill between writing and the end of the command."""
    _, words = files
    out = tmp_path / "out.safetensors"
    for alpha in ("0.5", "0.7"):
        assert main(["merge", *words, "--alpha", alpha, "--out", str(out)]) == 0
    expected = tasklab.merge(words[3], words[:2], alpha=0.7)
    assert torch.equal(load_file(out)["up.weight"], expected["up.weight"])
    capsys.readouterr()
    again = [str(out), words[0], *words[2:], "--alpha", "0.5", "--out", str(out)]
    assert "is one of the vectors" in mistaken(["merge", *again], capsys)


def test_a_folder_that_another_process_made_meanwhile_is_named(
    files, tmp_path, capsys, monkeypatch
):
    _, (_, _, *base) = files
    monkeypatch.setattr("tasklab.storage.atomic.check_new_folder", lambda *_: None)
    out = tmp_path / "out"
    words = [adapter(tmp_path / name, seed) for seed, name in enumerate("xy")]
    words += [*base, "--alpha", "1", "--rank", "2", "--out", str(out)]
    assert main(["merge", *words]) == 0 and capsys.readouterr().out
    told = mistaken(["merge", *words], capsys)
    assert "out is there already, from another process: choose another folder with --out." in told


def test_an_average_needs_no_base(files, tmp_path, capsys):
    _, words = files
    out = tmp_path / "out.safetensors"
    assert main(["merge", *words[:2], "--method", "average", "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith("Average of 2 networks\n")
    expected = tasklab.merge(words[3], words[:2], "average")
    torch.testing.assert_close(load_file(out)["up.weight"], expected["up.weight"])


def test_an_empty_name_is_not_this_folder(files, tmp_path, capsys, monkeypatch):
    _, words = files
    monkeypatch.chdir(words[0])
    given = [words[1], "", *words[2:], "--alpha", "1", "--out", str(tmp_path / "out.safetensors")]
    mistaken(["merge", *given], capsys)
    mistaken(["merge", *words[:2], "--base", "", "--alpha", "1"], capsys)
    assert "is empty" in mistaken(["inspect", "", "--base", words[3]], capsys)
