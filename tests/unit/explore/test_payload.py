"""What an editor's page holds: scores in 16 bits, and pictures."""

import base64
import io
import json

import numpy as np
from PIL import Image

from tasklab.book.explore import payload
from tasklab.book.explore.payload import Curve, Payload, ShownTask
from tests.helpers import refuses


def drawn(phase, side=8):
    light = np.linspace(40, 220, side) + 0 * np.arange(side)[:, None]
    stripe = np.where(np.arange(side)[:, None] // 4 % 2 == phase % 2, 220, 30) + 0 * light
    return np.stack([light, stripe, 255 - light], 2).astype(np.uint8)


def made(tasks=3, images=60, pictures=2, seed=0):
    rng = np.random.default_rng(seed)
    shown, scores = [], {}
    for i in range(tasks + 1):
        name, classes = f"Task {i} <b>", 4 + 3 * i
        base = rng.normal(size=(images, classes)) * 30 + 500
        slopes = rng.normal(size=(tasks, images, classes)) * 20
        scores[name] = base, slopes
        shown.append(
            ShownTask(
                name=name, classes=tuple(f"</script> {c}" for c in range(classes)),
                labels=rng.integers(0, classes, images), scores=payload.quantised(base, slopes),
                pictures=np.stack([drawn(i + k) for k in range(pictures)] or [drawn(0)])[:pictures],
            )
        )  # fmt: skip
    names = tuple(scores)[:tasks]
    content = Payload(
        method="linearized", images=f"{images} validation images of each task", vectors=names,
        tasks=tuple(shown), presets={"none": (0.0,) * tasks, "all": (0.3,) * tasks},
        curves=(Curve(label="non-linear", alphas=(0.0, 0.5, 1.0), means=(20.0, 40.5, 30.25)),),
    )  # fmt: skip
    return content, scores


def test_scores_are_within_one_image_and_pictures_small():
    content, scores = made(images=500)
    rng = np.random.default_rng(1)
    for _ in range(100):
        alphas = rng.uniform(-1, 1, 3)
        found = content.accuracies(alphas)
        for task in content.tasks:
            base, slopes = scores[task.name]
            exact = (base + np.tensordot(alphas, slopes, 1)).argmax(1) == task.labels
            assert abs(found[task.name] - 100 * exact.mean()) <= 100 / 500 + 1e-9
    rng = np.random.default_rng(0)
    noisy = np.clip(rng.normal(128, 20, (6, 32, 32, 3)), 0, 255).astype(np.uint8)
    assert len(payload._sprite([noisy] * 9)["jpeg"]) < 9 * noisy.size / 3  # losslessly: over 1
    noise = rng.integers(0, 256, (20, 64, 64, 3)).astype(np.uint8)
    assert payload._sprite([noise] * 20)["columns"] == 20


def test_scores_digits_and_counts():
    scores = payload.quantised(np.full((1, 3), 7.0), np.zeros((2, 1, 3)))
    assert scores.shape == (1, 3, 3) and not scores.any()
    told = [payload.percent(100 * (k / 80)) for k in (23, 41, 49, 51)]
    assert told == ["28.8", "51.2", "61.2", "63.8"]  # 28.75, 51.25, 61.25, 63.75
    content, _ = made(images=60)
    assert content.counted == "60 validation images of each task, 60 of the control"
    assert f"{content.counted}. Sliders" in content.document()


def test_a_page_holds_scores_in_16_bits_and_closes_no_script():
    content, _ = made()
    text = content.document()
    assert text.count("</script>") == 2
    held = json.loads(text.split('type="application/json">')[1].split("</script>")[0])
    for one, task in zip(held["tasks"], content.tasks, strict=True):
        assert (one["name"], tuple(one["classes"])) == (task.name, task.classes)
        scores = np.frombuffer(base64.b64decode(one["scores"]), "<i2")
        assert np.array_equal(scores.reshape(task.scores.shape), task.scores)
    with Image.open(io.BytesIO(base64.b64decode(held["sprite"]["jpeg"]))) as sprite:
        first = np.asarray(sprite)[:8, :8].astype(int)
    assert np.abs(first - content.tasks[0].pictures[0]).max() <= 12  # it is a JPEG
    assert json.loads(made(pictures=0)[0].json())["tasks"][0]["pictures"] == 0


def test_readers_without_scripts_and_two_editors():
    content, _ = made()
    text = content.document()
    table = text[text.index("<table>") : text.index("</table>")]
    assert "Task 0 &lt;b&gt;" in table
    assert f"{content.accuracies([0.3] * 3)['Task 1 <b>']:.1f}" in table
    names = {content.document().split('id="')[1].split('"')[0] for _ in range(2)}
    assert len(names) == 2
    name = content.vectors[1]
    assert content.accuracies({name: 0.7}) == content.accuracies([0, 0.7, 0])
    refuses("no vector of 'Textures'", content.accuracies, {"Textures": 1})
    refuses("3 vectors need as many", content.accuracies, [1.0])
