"""The editor of a page in a browser, from a file: no kernel, no server."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tasklab.book.explore import payload
from tasklab.book.explore.payload import Curve, Payload, ShownTask


def made(seed, images=100):
    rng = np.random.default_rng(seed)
    names, tasks = tuple(f"Task {i}" for i in range(8)), []
    for i, name in enumerate((*names, "Control")):
        classes = 8 + i
        labels = rng.integers(0, classes, images)
        base = rng.normal(size=(images, classes)) + np.eye(classes)[labels]
        slopes = 0.5 * rng.normal(size=(8, images, classes))
        if i < 8:
            slopes[i] += 3 * np.eye(classes)[labels]
        tasks.append(
            ShownTask(
                name=name, classes=tuple(f"class {c}" for c in range(classes)), labels=labels,
                scores=payload.quantised(base, slopes),
                pictures=rng.integers(0, 256, (6, 32, 32, 3)).astype(np.uint8),
            )
        )  # fmt: skip
    return Payload(
        method="linearized", images=f"{images} validation images of each task", vectors=names,
        tasks=tuple(tasks),
        presets={"pre-trained": (0.0,) * 8, "all at 0.40": (0.4,) * 8, "negate all": (-1.0,) * 8},
        curves=(Curve(label="non-linear", alphas=(0.0, 0.5, 1.0), means=(20.0, 40.0, 30.0)),),
    )  # fmt: skip


@pytest.fixture
def contents():
    return made(0), made(1)


@pytest.fixture
def opened(browser, tmp_path):
    """Return a function that opens a page of a text, on which nothing may fail."""
    pages = []

    def call(text, **options):
        usual = {"viewport": {"width": 1000, "height": 900}, "reduced_motion": "reduce"}
        page = browser.new_page(**usual | options)
        page.set_default_timeout(60_000)
        page.problems, page.asked = [], []
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("console", lambda m: page.problems.append(m.text) if m.type == "error" else None)
        page.on("request", lambda r: page.asked.append(r.url))
        pages.append(page)
        file = tmp_path / f"{len(pages)}.html"
        head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Editors</title>'
        file.write_text(head + text, "utf-8")
        page.goto(file.as_uri())
        return page

    yield call
    for page in pages:
        assert page.problems == []
        page.close()


@pytest.fixture
def page(opened, contents):
    return opened("".join(one.document() for one in contents))


def status(page, number):
    return page.locator('[role="status"]').nth(number).inner_text()


def numbers(page, number):
    rows = page.locator(".tasklab-editor").nth(number).locator(".tl-task > .tl-number:not(output)")
    return [float(text.removesuffix(" %")) for text in rows.all_inner_texts()]


def test_the_script_computes_and_rounds_as_python_does(page, contents):
    rng = np.random.default_rng(2)
    for number, content in enumerate(contents):
        for alphas in rng.uniform(-1, 1, (50, 8)).tolist():
            editor = f"document.querySelectorAll('.tasklab-editor')[{number}].tasklab"
            found = page.evaluate(f"a => {editor}.accuracies(a)", alphas)
            assert np.allclose(found, [*content.accuracies(alphas).values()], rtol=0, atol=1e-9)
    values = [100 * (k / n) for n in (16, 80, 246, 250) for k in range(n + 1)]
    ask = "all => all.map(v => document.querySelector('.tasklab-editor').tasklab.fixed(v, 1))"
    assert page.evaluate(ask, values) == [payload.percent(value) for value in values]
    told = f"{contents[0].images}, 100 of the control."
    assert told in page.locator(".tl-key").nth(1).inner_text()


def test_a_measured_model_is_looked_up_at_its_stops(opened):
    rng, grid = np.random.default_rng(2), (-1.0, -0.5, 0.0, 0.5, 1.0)
    tasks = tuple(
        ShownTask(
            name=name, classes=("a", "b", "c"), labels=rng.integers(0, 3, 20),
            scores=rng.integers(0, 3, (5, 5, 20)).astype(np.int16),
            pictures=np.zeros((0, 32, 32, 3), np.uint8),
        )
        for name in ("One", "Two")
    )  # fmt: skip
    content = Payload(
        method="non-linear", images="20 validation images of each task", vectors=("One", "Two"),
        tasks=tasks, presets={"probes": (0.0, 0.0), "all at 0.50": (0.5, 0.5)}, grid=grid,
        start="probes",
    )  # fmt: skip
    page = opened(content.document())
    for at in itertools.product(grid, repeat=2):
        found = page.evaluate(
            "at => document.querySelector('.tasklab-editor').tasklab.accuracies(at)", at
        )
        assert found == pytest.approx([*content.accuracies(at).values()])
    slider = page.get_by_role("slider", name="One")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "1.00"
    told = content.accuracies((1.0, 0.5))
    status = page.locator("p[role=status]").inner_text()
    assert page.locator("output:not([aria-live=off])").count() == 0  # the sliders say their own
    assert f"{np.mean([*told.values()]):.1f} % (probes " in status


def test_what_is_shown_follows_a_preset(page, contents):
    page.locator("button", has_text="all at 0.40").first.click()
    expected = contents[0].accuracies([0.4] * 8).values()
    assert numbers(page, 0) == [float(payload.percent(value)) for value in expected]
    assert page.locator("button[aria-pressed=true]").first.inner_text() == "all at 0.40"
    assert page.locator("output").nth(3).inner_text() == "0.40"
    page.locator("button", has_text="negate all").first.click()
    assert page.locator("output").nth(3).inner_text() == "−1.00"


def test_an_arrow_key_moves_a_coefficient_and_says_so(page, contents):
    page.locator("button", has_text="pre-trained").first.click()
    before = status(page, 0)
    page.locator(".tl-task").nth(2).locator("input").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert page.locator("output").nth(3).inner_text() == "0.20"
    assert status(page, 0) != before
    expected = [*contents[0].accuracies({"Task 2": 0.2}).values()]
    assert numbers(page, 0) == [float(payload.percent(value)) for value in expected]


def test_it_opens_at_the_sum_and_sweeps_there_where_motion_is_welcome(opened, page, contents):
    assert page.locator("output").nth(3).inner_text() == "0.40"
    moving = opened(contents[0].document(), reduced_motion="no-preference")
    moving.locator("output", has_text="0.40").first.wait_for()
    assert numbers(moving, 0) == numbers(page, 0)


def test_a_task_is_forgotten_and_the_control_s_cost_is_told(page, contents):
    page.locator("button", has_text="pre-trained").first.click()
    page.get_by_role("button", name="forget Task 1", exact=True).first.click()
    assert page.locator("output").nth(2).inner_text() == "−0.40"
    control = contents[0].accuracies({"Task 1": -0.4})["Control"]
    assert f"to {payload.percent(control)} %." in status(page, 0)


def test_the_address_keeps_what_a_reader_chose(opened, contents):
    page, other = opened(f'<div class="bd-content">{contents[0].document()}</div>'), opened("")
    page.get_by_role("button", name="forget Task 1", exact=True).click()
    other.goto(page.url)
    assert "#edit=" in page.url
    assert [*other.locator("output").all_inner_texts()][1:4] == ["0.40", "−0.40", "0.40"]


def test_two_editors_do_not_disturb_each_other(page, contents):
    before = status(page, 1), numbers(page, 1)
    page.locator("button", has_text="all at 0.40").first.click()
    assert (status(page, 1), numbers(page, 1)) == before
    ids = page.eval_on_selector_all("[id]", "all => all.map(one => one.id)")
    assert len(ids) == len(set(ids))


def test_pictures_that_turn_right_say_so_in_words_and_shape(page, contents):
    page.locator("button", has_text="all at 0.40").first.click()
    flipped = page.locator(".tasklab-editor").first.locator(".tl-right.tl-flip")
    assert flipped.count() > 0
    assert "now ✓" in flipped.first.inner_text()
    assert "wrong before the edit" in flipped.first.locator("[role=img]").get_attribute(
        "aria-label"
    )
    style = "e => getComputedStyle(e.querySelector('.tl-image')).borderStyle"
    wrong = page.locator(".tl-wrong").first
    assert flipped.first.evaluate(style) != wrong.evaluate(style)


@pytest.mark.parametrize("width", [390, 1000])
def test_each_picture_s_class_can_be_read_and_what_it_is_taken_for(page, contents, width):
    page.set_viewport_size({"width": width, "height": 800})
    rows = page.locator(".tasklab-editor").first.locator(".tl-task").all()
    for row, task in zip(rows, contents[0].tasks, strict=True):
        scores = (task.scores[..., 0] + 0.4 * task.scores[..., 1:].sum(-1)).argmax(1)
        pictures = row.locator(".tl-picture").all()
        start = task.scores[..., 0].argmax(1)
        for picture, label, found, before in zip(
            pictures, task.labels, scores, start, strict=False
        ):
            words = picture.locator(".tl-class")
            answer = "✓" if found == label else f"✗ {task.classes[found]}"
            answer = f"now {answer}" if (found == label) != (before == label) else answer
            assert [w.strip() for w in words.all_inner_texts()] == [task.classes[label], answer]
            for box in [word.bounding_box() for word in words.all()]:
                assert box["height"] > 10 and box["x"] >= 0
                assert box["x"] + box["width"] <= width


def test_tab_goes_from_presets_to_all_tasks_and_to_each_one_by_its_name(page, contents):
    page.locator("button").first.focus()
    rows = [text for name in contents[0].vectors for text in (name, "forget")]
    expected = [*contents[0].presets, "all tasks", *rows]
    name = "(e => e.type === 'range' ? e.labels[0].textContent : e.textContent)"
    passed = []
    for _ in expected:
        passed.append(page.evaluate(f"{name}(document.activeElement)"))
        page.keyboard.press("Tab")
    assert passed == expected
    page.get_by_role("slider", name="Task 3", exact=True).first.press("ArrowLeft")
    assert page.locator("output").nth(4).inner_text() == "0.35"


def test_tasks_whose_names_differ_in_signs_alone_have_sliders_of_their_own(opened):
    content = made(3)
    names = dict(zip(content.vectors, ("车", "物", *content.vectors[2:]), strict=True))
    tasks = [replace(task, name=names.get(task.name, task.name)) for task in content.tasks]
    content = replace(content, vectors=tuple(names.values()), tasks=tuple(tasks))
    page = opened(content.document())
    for name in ("车", "物"):
        labels = "all => all.map(one => one.control.closest('.tl-task').ariaLabel)"
        found = page.locator("label", has_text=name).evaluate_all(labels)
        assert found == [name]


def test_it_is_small_fits_a_phone_and_asks_for_nothing(page):
    page.locator("button", has_text="all at 0.40").first.click()
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert len(made(0, images=250).document().encode()) < 1.5e6


def test_a_table_stands_where_scripts_do_not_run(opened, contents):
    phone = {"width": 390, "height": 800}
    plain = opened(contents[0].document(), java_script_enabled=False, viewport=phone)
    assert plain.locator("table").is_visible()
    cells = plain.locator("tbody tr").first.locator("th, td").all()
    spaces = [one.evaluate("e => parseFloat(getComputedStyle(e).paddingLeft)") for one in cells]
    assert min(spaces) >= 4  # numbers do not run together
    assert plain.evaluate("document.documentElement.scrollWidth") <= 390
    caption = plain.locator("caption").bounding_box()
    assert caption["x"] >= 0 and caption["x"] + caption["width"] <= 390
    assert plain.locator("tbody tr").count() == 9


def test_the_landing_page_shows_fewer_pictures(opened, contents):
    editor = 'class="tasklab-editor"'
    page = opened(contents[0].document().replace(editor, f'{editor} data-pictures="1"', 1))
    assert page.locator(".tl-task").count() == 9 and page.locator(".tl-picture").count() == 8
