"""The network of a page in a browser, from a file: no kernel, no server."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from tasklab import explore, models
from tasklab.explore.packing import parameters
from tasklab.tuning import dual

PICTURES = 3


@pytest.fixture(scope="module")
def shipped():
    return explore.network()


@pytest.fixture(scope="module")
def page(browser, shipped, tmp_path_factory):
    file = tmp_path_factory.mktemp("network") / "network.html"
    (file.parent / "weights.js").write_text(shipped.script(), "utf-8")
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>A network</title>'
    file.write_text(head + shipped.document(source="weights.js"), "utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.set_default_timeout(120_000)
    page.problems, page.asked = [], []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda m: page.problems.append(m.text) if m.type == "error" else None)
    page.on("request", lambda r: page.asked.append(r.url))
    page.goto(file.as_uri())
    assert not any(url.endswith("weights.js") for url in page.asked)
    page.get_by_role("button", name="Load the network").click()
    page.locator(".tl-live[data-done]").wait_for(timeout=120_000)
    yield page
    assert page.problems == []
    page.close()


def pictures(info, values):
    with Image.open(io.BytesIO(values[-info["picture_bytes"] :].tobytes())) as sheet:
        pixels = np.asarray(sheet.convert("RGB")).astype(np.float32) / 255
    side = info["side"]
    x = (pixels - np.float32(info["mean"])) / np.float32(info["std"])
    x = x.reshape(len(info["tasks"]), side, -1, side, 3).transpose(0, 2, 4, 1, 3)
    return torch.from_numpy(np.ascontiguousarray(x[:, :PICTURES]))


def decoded(network):
    """Return the page's numbers as matrices: theta_0, vectors by task, and heads by task."""
    place = 0

    def taken(dtype, rows, columns):
        nonlocal place
        values = np.frombuffer(network.values, dtype, rows * columns, place)
        place += values.nbytes
        return values.reshape(rows, columns)

    shapes = {one["name"]: (one["rows"], one["columns"]) for one in network.info["tensors"]}
    theta, vectors, tasks = {}, {}, network.info["tasks"]
    for name, (rows, columns) in shapes.items():
        scales = taken(np.float32, rows, columns if rows == 1 else 1)
        theta[name] = scales if rows == 1 else scales * taken(np.int8, rows, columns)
    for task in tasks:
        vectors[task["name"]] = own = {}
        for name, (rows, columns) in shapes.items():
            scales = taken(np.float32, rows, 1)
            if rows == 1:
                own[name] = scales * taken(np.int8, 1, columns)
            else:
                pairs = taken(np.uint8, rows, columns // 2)
                steps = np.stack([pairs >> 4, pairs & 15], -1).astype(np.int8) - 8
                own[name] = scales * steps.reshape(rows, columns)
    width = network.info["width"]
    return theta, vectors, {t["name"]: taken(np.float32, len(t["classes"]), width) for t in tasks}


def test_the_page_computes_what_torch_does(page, shipped):
    info, encoder = shipped.info, models.load("mini_s").encoder
    theta, vectors, heads = decoded(shipped)
    start = parameters(encoder, theta)
    taus = [parameters(encoder, vector) for vector in vectors.values()]
    x = pictures(info, shipped.values)
    rng = np.random.default_rng(0)
    for alphas in ([0.0] * 8, [0.3] * 8, *rng.uniform(-1, 1, (4, 8)).tolist()):
        edit = {k: sum(a * tau[k] for a, tau in zip(alphas, taus, strict=True)) for k in start}
        edit = {k: edit[k] if torch.is_tensor(edit[k]) else 0 * start[k] for k in start}
        merged = encoder({k: start[k] + edit[k] for k in start}, x.flatten(0, 1))
        f0, moved = dual.passes(encoder).pair(start, edit, x.flatten(0, 1))
        seen = page.evaluate(
            "([at, n]) => document.querySelector('.tasklab-editor').tasklab.logits(at, n)",
            [alphas, PICTURES],
        )
        for features, logits in zip((merged, f0 + moved), seen, strict=True):
            unit = torch.nn.functional.normalize(features, dim=-1).unflatten(0, (8, PICTURES))
            for task, own in enumerate(logits):
                wanted = unit[task].detach().numpy() @ heads[info["tasks"][task]["name"]].T
                np.testing.assert_allclose(own, wanted, atol=2e-3)


def test_a_slider_changes_answers_and_counts(page):
    counts = page.locator(".tl-row > .tl-number:last-child")
    page.get_by_role("button", name="add all").click()
    page.wait_for_timeout(100)
    page.locator(".tl-live[data-done]").wait_for()
    page.get_by_role("button", name="pre-trained").click()
    before = counts.all_inner_texts()
    assert page.locator("[role=status]").inner_text().startswith(("Right: ", "Wrong: "))  # spoken
    page.wait_for_function(
        "before => [...document.querySelectorAll('.tl-row > .tl-number:last-child')]"
        ".map(n => n.innerText).join() !== before",
        arg=",".join(before),
    )
    assert all(value == "0.00" for value in page.locator("output").all_inner_texts())


def test_a_drawing_is_answered_and_the_page_fits_a_phone(page):
    pad = page.locator(".tl-pad")
    pad.scroll_into_view_if_needed()
    box = pad.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 180, box["y"] + 180, steps=5)
    page.mouse.up()
    assert pad.get_attribute("aria-label").startswith("your drawing")
    dark = "pad => pad.getContext('2d').getImageData(0, 0, 256, 256).data.filter(x => x < 9).length"
    drawn = pad.evaluate(dark)
    pad.press("Shift+ArrowLeft")
    assert pad.evaluate(dark) == drawn > 0
    pad.press("ArrowLeft")
    assert pad.evaluate(dark) > drawn
    assert "true" not in page.locator(".tl-answers").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert all(url.startswith(("file:", "blob:", "data:")) for url in page.asked)
