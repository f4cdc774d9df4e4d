"""Rules from somebody's file: what is read, what they are given, and what is refused."""

import pytest
import torch

from tasklab.analyses import merging
from tasklab.analyses.merging import own, registry
from tasklab.taskvector import TaskVector
from tests.helpers import refuses

MEAN = '''"""Of a file."""

def merge(vectors):
    """The mean."""
    return sum(vectors.values()) / len(vectors)

def longest(vectors, features=None):
    return max(vectors.values(), key=lambda one: one.norm())
'''


@pytest.fixture
def rule(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_OWN", {})

    def write(text=MEAN, name="mine.py"):
        (tmp_path / name).write_text(text)
        return name

    return write


def test_a_rule_merges_like_a_method_and_has_a_coefficient(rule, cases):
    vectors = cases.vectors(3)
    found = merging.merge(rule(), vectors, alpha=0.5)
    expected = merging.merge("average", vectors, alpha=0.5)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])
    by_task = dict(zip("abc", vectors, strict=True))
    assert merging.merge("mine.py", by_task) == merging.merge("mine.py", vectors)
    method = registry.method("mine.py")
    assert (method.title, method.text, method.source) == ("mine", "The mean.", "mine.py")
    assert method.options == {"alpha": 1.0} and len(method.digest) == 64
    refuses("mine.py has no recommended", method.usual, 3, {})
    assert registry.several(["ties", "mine.py:longest"]) == ("ties", "mine.py:longest")
    assert registry.method("mine.py:longest").needs == own.FEATURES
    assert max(["regmean", "mine.py", "tsv_m"], key=registry.costs) == "regmean"


def test_the_rule_of_the_page_keeps_lengths(rule, cases, root):
    page = root / "book" / "checkpoints.md"
    if not page.exists():
        pytest.skip("an installed package has no book")
    section = page.read_text("utf-8").partition("(own-rule)=")[2]
    text = section.partition("```python\n")[2].partition("```")[0]
    assert text.count("\n") < 20
    vectors = cases.vectors(3)
    found = merging.merge(rule(text), vectors)
    for name, x in found.items():
        mean = sum(float(v[name].norm()) for v in vectors) / 3
        assert float(x.norm()) == pytest.approx(mean)


def test_features_are_of_the_edited_model_and_have_derivatives(encoder):
    x = torch.rand((5, 3, 8, 8), dtype=torch.double)
    features = own.features_of(encoder, {"a": x}.__getitem__)
    vector = {n: 0.1 * torch.ones_like(p) for n, p in encoder.params.items()}
    plain = encoder(TaskVector(vector).apply(encoder.params), encoder.preprocess(x))
    torch.testing.assert_close(features(vector, "a"), plain)
    scale = torch.ones((), requires_grad=True)
    features({n: scale * v for n, v in vector.items()}, "a").square().sum().backward()
    assert float(scale.grad.abs()) > 0


@pytest.mark.parametrize(
    ("text", "word", "told"),
    [
        (MEAN, "none.py", "there is no file 'none.py'"),
        (MEAN, "mine.py:longst", "did you mean 'longest'"),
        ("def merge(): pass", "mine.py", "takes no vectors"),
        ("def merge(vectors, depth): pass", "mine.py", "merge asks for depth"),
        ("1 / 0", "mine.py", "cannot be run: ZeroDivisionError"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(rule, text, word, told):
    rule(text)
    refuses(told, registry.named, word)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return 3", "returns 3, and no TaskVector"),
        ("return {'other': next(iter(vectors.values()))['proj']}", "'other' of shape"),
        ("return {'proj': next(iter(vectors.values()))['proj'] / 0}", "not finite"),
        ("return vectors['nobody']", "mine.py: KeyError: 'nobody'"),
    ],
)
def test_what_is_no_merge_is_refused(rule, cases, body, told):
    word = rule(f"def merge(vectors):\n    {body}\n")
    refuses(told, merging.merge, word, cases.vectors(2))


def test_a_rule_that_changes_its_vectors_changes_copies(rule, cases):
    vectors = cases.vectors(2)
    before = [{name: x.clone() for name, x in one.items()} for one in vectors]
    body = "for one in v.values():\n  for n in one: one[n].mul_(2)\n return sum(v.values())"
    merged = merging.merge(rule(f"def merge(v):\n {body}"), vectors)
    for name, x in merged.items():
        torch.testing.assert_close(x, 2 * sum(one[name] for one in before))
    for one, held in zip(vectors, before, strict=True):
        assert all(torch.equal(one[name], x) for name, x in held.items())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import sys\nsys.exit(0)", "cannot be run: SystemExit: 0"),
        (
            "import argparse\nargparse.ArgumentParser().parse_args(['--x'])",
            "cannot be run: SystemE",
        ),
        ("def merge(vectors): raise SystemExit(3)", "mine.py: SystemExit: 3"),
        ("def merge(vectors): raise ValueError('a\\nb')", "mine.py: ValueError: a b"),
        ("x = 1", "has no function: define merge"),
    ],
)
def test_an_exit_and_an_error_of_many_lines_are_one_sentence(rule, cases, text, told):
    vectors, name = cases.vectors(2), rule(text)
    assert "\n" not in refuses(told, merging.merge, name, vectors)


def test_prints_of_a_rule_are_not_in_the_output(rule, cases, capsys):
    text = "class M:\n def __call__(self, v):\n  print('called'); return sum(v.values())\n"
    text = f"print('read')\n{text}merge = M()"
    vectors = cases.vectors(2)
    assert merging.merge(rule(text), vectors) == merging.merge("arithmetic", vectors)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "read\ncalled\n")


def test_a_file_whose_name_is_no_utf_8_is_refused(tmp_path):
    place = tmp_path / "mine\udcff.py"
    place.write_text("def merge(vectors): return sum(vectors)")
    refuses("needs a name of ordinary letters", merging.registry.named, str(place))
