"""The network of a page in a browser, from a file: no kernel, no server."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from tasklab import models
from tasklab.book import explore
from tasklab.book.explore.packing import opening, parameters
from tasklab.models.heads import Head
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
    body = f'<div class="bd-content">{shipped.document(source="weights.js")}</div>'
    file.write_text(head + body, "utf-8")
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
    page.opened = page.locator("[role=status]").inner_text()
    yield page
    assert page.problems == []
    page.close()


def pixels(info, values):
    """Return all pictures (T, N, 3, H, W), uint8."""
    with Image.open(io.BytesIO(values[-info["picture_bytes"] :].tobytes())) as sheet:
        x = np.asarray(sheet.convert("RGB"))
    side = info["side"]
    x = x.reshape(len(info["tasks"]), side, -1, side, 3).transpose(0, 2, 4, 1, 3)
    return torch.from_numpy(np.ascontiguousarray(x))


def pictures(info, values):
    x = pixels(info, values)[:, :PICTURES].numpy().astype(np.float32) / 255
    mean, std = (np.float32(info[key])[:, None, None] for key in ("mean", "std"))
    return torch.from_numpy((x - mean) / std)


def png(array):
    """Return an image as a file of a browser."""
    data = io.BytesIO()
    Image.fromarray(array).save(data, "PNG")
    return {"name": "a.png", "mimeType": "image/png", "buffer": data.getvalue()}


def choose(page, file):
    page.locator("[role=status]").evaluate("node => { node.textContent = ''; }")
    page.locator("input[type=file]").set_input_files(file)
    page.wait_for_function("() => document.querySelector('[role=status]').textContent")
    return page.locator("[role=status]").inner_text()


PAD = "pad => [...pad.getContext('2d').getImageData(0, 0, 256, 256).data]"


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


def test_it_opens_with_a_right_answer_and_says_what_it_knows(page, shipped):
    assert page.opened.startswith("Right: ")
    rates, text = shipped.info["abstention"], page.locator(".tl-network").inner_text()
    assert f"{rates['noise']:.0f} % of uniform noise" in text and "drop one on the canvas" in text
    pad = page.get_by_role("application")
    described = page.locator(f"[id='{pad.get_attribute('aria-describedby')}']")
    assert "arrow keys" in described.inner_text()


def test_the_threshold_and_its_rates_are_those_of_the_shipped_pictures(shipped):
    info, encoder = shipped.info, models.load("mini_s").encoder
    theta, vectors, heads = decoded(shipped)
    start = parameters(encoder, theta)
    taus = [parameters(encoder, vector) for vector in vectors.values()]
    params = {k: x + info["alpha"] * sum(tau[k] for tau in taus) for k, x in start.items()}
    tasks, x = info["tasks"], pixels(info, shipped.values)
    found = opening(
        encoder,
        params,
        {task["name"]: images for task, images in zip(tasks, x, strict=True)},
        {task["name"]: task["classes"] for task in tasks},
        {task["name"]: task["labels"] for task in tasks},
        {name: Head(torch.from_numpy(head.copy())) for name, head in heads.items()},
    )
    assert found["opens"] == info["opens"]
    assert found["abstention"] == pytest.approx(info["abstention"], abs=0.7)  # one picture of 160
    rates = found["abstention"]
    assert rates["own"] == pytest.approx(90, abs=1) and max(rates["other"], rates["noise"]) < 35


def test_it_names_no_class_of_a_picture_of_nothing_it_knows(page, shipped):
    page.get_by_role("button", name="add all").click()
    task = page.get_by_label("Question")
    noise = np.random.default_rng(1).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    task.select_option("0")  # vehicles; noise is near a texture that is called grainy
    assert choose(page, png(noise)).startswith("Nothing it knows is likely")
    assert page.locator(".tl-answer").count() == 0
    number, first = shipped.info["opens"]
    sign = pixels(shipped.info, shipped.values)[number, first].numpy().transpose(1, 2, 0)
    task.select_option(str(number))
    told = choose(page, png(np.ascontiguousarray(sign)))
    known = shipped.info["tasks"][number]
    assert told.startswith(known["classes"][known["labels"][first]])
    assert page.locator(".tl-answer").count() == 5


def test_a_transparent_picture_stands_on_white(page):
    disc = np.zeros((64, 64, 4), np.uint8)
    disc[20:44, 20:44] = (200, 0, 0, 255)
    seen = []
    for seed in range(2):
        noise = np.random.default_rng(seed).integers(0, 256, (64, 64, 3))
        choose(page, png(noise.astype(np.uint8)))
        choose(page, png(disc))
        seen.append(page.locator(".tl-pad").evaluate(PAD))
    assert seen[0] == seen[1] and seen[0][:4] == [255, 255, 255, 255]


@pytest.mark.parametrize(
    "file",
    [
        {"name": "a.png", "mimeType": "image/png", "buffer": b"no picture"},
        {"name": "a.txt", "mimeType": "text/plain", "buffer": b"no picture"},
    ],
)
def test_an_unreadable_file_leaves_no_old_answer(page, file):
    page.locator(".tl-pick").first.click()
    assert page.locator(".tl-answer").count() == 5
    assert "picture" in choose(page, file)
    assert page.locator(".tl-answer").count() == 0
    assert set(page.locator(".tl-pad").evaluate(PAD)) == {255}
    assert page.locator(".tl-pick[aria-pressed=true]").count() == 0


def test_an_empty_canvas_has_no_answer_and_a_drawing_of_it_is_read(page):
    page.locator(".tl-pick").first.click()
    page.get_by_role("button", name="clear").click()
    page.get_by_label("Question").select_option("1")
    page.get_by_role("button", name="pre-trained").click()
    assert page.locator("[role=status]").inner_text().startswith("The canvas is empty")
    assert page.locator(".tl-answer").count() == 0
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" width="32" height="32"><circle r="9"/></svg>'
    told = choose(page, {"name": "a.svg", "mimeType": "image/svg+xml", "buffer": svg})
    assert "empty" not in told and "cannot" not in told


def test_the_address_keeps_the_sliders_beside_those_of_an_editor(page):
    page.evaluate("history.replaceState(null, '', '#edit=0.4,0.4')")
    values = ",".join(["0"] * 3 + ["-1"] + ["0"] * 4)
    page.get_by_role("button", name="pre-trained").click()
    page.get_by_role("slider", name="Signs").press("Home")
    assert page.url.endswith(f"#edit=0.4,0.4&network={values}")
    page.reload()
    page.get_by_role("button", name="Load the network").click()
    page.locator(".tl-live[data-done]").wait_for()
    assert page.locator("output").all_inner_texts() == ["0.00"] * 3 + ["\u22121.00"] + ["0.00"] * 4
