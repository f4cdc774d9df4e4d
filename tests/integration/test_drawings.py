"""The second world: its source, its cleaning and its splits, on a small package made here."""

import hashlib
import io
import json
import tarfile

import numpy as np
import pytest
import torch

from pretraining.icons import __main__ as command
from pretraining.icons import clean, corpus, names, render, source, tasks, unlike
from tasklab.mini.clip import tokenize
from tasklab.tasks import icons
from tests.helpers import refuses

TABLE = "Things | thing\nbox: crate\ndisc\nbar\n\nDocuments | thing\nsheet\nlid\n"
_RNG = np.random.default_rng(0)


def _body(kind):
    x, y, w, h = (float(v) for v in _RNG.uniform((1, 1, 8, 4), (8, 8, 14, 14)))
    if kind == "disc":
        return f'<circle cx="{12 + x / 4}" cy="{12 + y / 4}" r="{w / 2}"/>'
    extra = f'<path d="M{y} {x}L{20 - x} {22 - h}L{w} {y}Z" fill="currentColor"/>'
    return f'<rect x="{x}" y="{y}" width="{w}" height="{h}"/>{extra}'


def _set(prefix, author, *, licence="MIT", category="Thematic"):
    kinds = ("box", "disc", "bar", "sheet", "lid")
    icons_ = {f"{kind}-{n}-outline": {"body": _body(kind)} for kind in kinds for n in range(16, 48)}
    icons_ |= {f"thing-{chr(97 + n)}{chr(97 + n)}": {"body": _body("box")} for n in range(20)}
    icons_ |= {"box-copy": {"body": '<rect x="4" y="4" width="16" height="12"/>'}}
    icons_ |= {"box": {"body": '<rect x="4" y="4" width="16" height="12"/>'}}
    icons_ |= {"disc-of-the-firm": {"body": _body("disc")}, "logo-box": {"body": _body("box")}}
    icons_ |= {"hidden": {"body": _body("box"), "hidden": True}, "blank": {"body": "<g/>"}}
    if prefix == "solar":
        for n in range(20):
            icons_[f"thing-c{chr(97 + n)}"] = {"body": f'<g fill="#d22">{_body("box")}</g>'}
    info = {
        "name": prefix.title(),
        "author": {"name": author, "url": f"https://example.org/{prefix}"},
        "license": {"spdx": licence, "url": "https://example.org/licence"},
        "category": category,
    }
    return {"prefix": prefix, "info": info, "width": 24, "height": 24, "icons": icons_}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    path = tmp_path_factory.mktemp("package") / source.FILE
    entries = [
        _set("tabler", "A"), _set("mdi", "B"), _set("solar", "C"), _set("tabler-more", "A"),
        _set("own", "D", licence="CC-BY-NC-4.0"), _set("share", "E", licence="CC-BY-SA-4.0"),
        *(_set(f"logos{n}", "F", category="Logos") for n in range(3)),
    ]  # fmt: skip
    for entry in entries[-3:]:
        entry["icons"] = {"disc-of-the-firm": {"body": "<g/>"}}
    with tarfile.open(path, "w:gz") as file:
        for entry in entries:
            data = json.dumps(entry).encode()
            member = tarfile.TarInfo(f"package/json/{entry['prefix']}.json")
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture(scope="module")
def made(package, tmp_path_factory):
    folder, into = tmp_path_factory.mktemp("world"), tmp_path_factory.mktemp("shipped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "SHA256", hashlib.sha256(package.read_bytes()).hexdigest())
        patch.setattr(tasks, "LEAST", {"train": 3, "test": 3})
        command.make(folder, package, into, into / "merges.txt.gz", TABLE)
        before = {file: file.read_bytes() for file in into.iterdir()}
        for file in (*into.iterdir(), folder / corpus.FILE):
            file.unlink()
        icons.sources.cache_clear()
        command.make(folder, package, into, into / "merges.txt.gz", TABLE)
    assert before == {file: file.read_bytes() for file in into.iterdir()}  # the same bytes again
    return folder, into


def test_an_absent_or_another_package_is_said(tmp_path, package):
    refuses("npm pack @iconify/json@2.2.535", lambda: source.check(tmp_path / source.FILE))
    refuses("SHA-256", source.check, package)


def test_families_labels_and_licences(made):
    folder, into = made
    table = icons.sources(into)
    assert set(table["sets"]) <= {"tabler", "mdi", "solar", "tabler-more"}
    assert {one["licence"] for one in table["sets"].values()} == {"MIT"}
    said = {name for listed in icons.drawings(into).values() for name in listed}
    assert not [name for name in said if "firm" in name or "logo" in name or "hidden" in name]
    learnt = {name for name, _, _ in corpus.Corpus(folder, 0, 8).captions}
    assert "box" not in learnt and "disc of the firm" not in learnt and "logo box" not in learnt
    _, into = made
    table, drawings = icons.sources(into), icons.drawings(into)
    families = {prefix: one["family"] for prefix, one in table["sets"].items()}
    images, _ = icons.whole("Things", into)
    sizes = icons.entry("Things", into)["sizes"]
    assert sizes["train"] > 20 and sizes["test"] > 20
    test = [families[name.split(":")[0]] for name in drawings["Things"][-sizes["test"] :]]
    rest = [families[name.split(":")[0]] for name in drawings["Things"][: -sizes["test"]]]
    assert not set(test) & set(rest)
    assert clean.distinct(images[:, 0].numpy()).all()
    entry, (_, labels) = icons.entry("Things", into), icons.whole("Things", into)
    for said, label in zip(icons.drawings(into)["Things"], labels.tolist(), strict=True):
        assert names.concept(said.split(":")[1]) == entry["classes"][label]
    folder, _ = made
    pairs = corpus.Corpus(folder, seed=1, size=16)
    assert len(pairs.captions) > 16
    part, again = pairs.turn(1), corpus.Corpus(folder, seed=1, size=16).turn(1)
    assert part["images"].shape == (16, 3, 32, 32) and part["images"].dtype == torch.uint8
    assert all(torch.equal(part[key], again[key]) for key in part)
    for caption in ("icon of box thing ab", "tabler icon of sheet lid disc bar thing aa bb cc dd"):
        assert torch.equal(pairs._tokens(caption), tokenize([caption], "icons")[0])


@pytest.mark.parametrize(
    ("name", "concept"),
    [
        ("outline-shopping-cart-24-filled", "shopping cart"), ("home-02", "home"),
        ("home-3--home-house-roof", "home"), ("bold", "bold"),
        ("arrow-left-16-regular", "arrow left"),
    ],
)  # fmt: skip
def test_names_without_style(name, concept):
    assert names.concept(name) == concept


def test_near_copies_are_those_of_all_pairs():
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (60, 20, 20)).astype(np.uint8)
    images[30:] = np.clip(images[:30] + rng.integers(-42, 43, (30, 20, 20)), 0, 255)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clean, "_ROWS", 7)
        kept = clean.distinct(images)
        copied = clean.copies(images[30:], images[:30])
    exact = np.corrcoef(images.reshape(60, -1))
    expected: list[int] = []
    for i in range(60):
        if not (exact[i, expected] > clean.LIMIT).any():
            expected.append(i)
    assert np.flatnonzero(kept).tolist() == expected and 30 < len(expected) < 60
    assert copied.tolist() == (exact[30:, :30] > clean.LIMIT).any(1).tolist()


def test_a_drawing_is_turned_about_its_middle():
    svg = source._svg({"body": '<rect x="10" y="2" width="4" height="8"/>'}, 24, 24)
    upright, right = (render.picture(unlike.svg_turned(svg, angle)) for angle in (0, 90))
    rows, columns = np.nonzero(upright[0] < 128)
    assert rows.mean() < 15.5 and abs(columns.mean() - 15.5) < 1
    expected = np.rot90(upright[0], -1)
    assert clean.correlation(right[:1], expected[None]) > 0.99
    assert clean.correlation(upright[:1], expected[None]) < 0.5
