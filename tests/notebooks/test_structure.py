"""What every chapter's source looks like."""

import ast
import dataclasses
import difflib
import inspect
import itertools
import re
import types
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest

import tasklab
from tasklab.bench.parameters import Parameters
from tasklab.book import captions
from tasklab.evidence import chapters
from tests import found
from tests.helpers import refuses

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
PUBLIC = {"tasklab", "torch", "pandas", "tempfile", "pathlib", "PIL", "sklearn"}
TABLES = ("table", "verdict_list", "price", "subset_cost")
SHOWS = {"page", "figures", "explore"}
BAD = {"model": "vitb23", "init": "pretraind", "preset": "quik", "suite": "minni", "steps": -1}

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def _code(path):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def test_it_has_no_outputs_and_a_kernel(path):
    for cell in _code(path):
        assert cell.outputs == []
        assert cell.execution_count is None
    # papermill asks for the language before it passes a parameter; the book's cache for the kernel.
    kernel = nbformat.read(path, 4).metadata["kernelspec"]
    assert (kernel["name"], kernel["language"]) == ("python3", "python")
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "markdown":
            assert not re.search(r"\{[\w:]+\}`|^(```|:::)\{", cell.source, re.M), cell.source
            assert "$$ (" not in cell.source  # a label that only MyST understands
            # of an untrusted notebook JupyterLab shows no more of a drawing than its words
            assert "<svg" not in cell.source


def test_code_cells_are_short_and_show_their_last_line(path):
    for cell in _code(path):
        assert len(cell.source.splitlines()) <= 30, cell.source.splitlines()[0]
    # A figure or sentence elsewhere in the cell would be made and not shown.
    for cell in _code(path):
        body = ast.parse(cell.source).body
        shown = [node for part in body for node in ast.walk(part) if isinstance(node, ast.Expr)]
        shown = [node for node in shown if _root(getattr(node.value, "func", node.value)) in SHOWS]
        assert [node for node in shown if node is not body[-1]] == []
    for cell in _code(path):
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, ast.ClassDef)
            assert not (isinstance(node, ast.Attribute) and node.attr in {"backward", "step"})


def test_jupyterlab_folds_what_the_site_folds(path):
    """Of answers the output, too: `page.answer` does it, as JupyterLab opens what a cell shows."""
    for cell in _code(path):
        folded = {"hide-input", "hide-cell", "remove-input"} & {*cell.metadata.get("tags", [])}
        assert bool(folded) == cell.metadata.get("jupyter", {}).get("source_hidden", False)
        if "hide-cell" in folded:
            assert cell.source.count("page.answer(") == 1 and "print(" not in cell.source


def test_the_first_code_cell_holds_the_parameters(path):
    tagged = [cell for cell in _code(path) if "parameters" in cell.metadata.get("tags", [])]
    assert tagged == [_code(path)[0]]
    body = ast.parse(tagged[0].source).body
    assigned = {node.targets[0].id: ast.literal_eval(node.value) for node in body}
    declared = {field.name: field.default for field in dataclasses.fields(Parameters)}
    assert list(assigned.items()) == list(declared.items()) and len(body) == len(declared)


def test_no_variable_is_taken_for_a_misspelt_parameter(path):
    code = "\n".join(cell.source for cell in _code(path)[1:])
    assigned = {
        node.targets[0].id
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for name in assigned - {*Parameters.names()}:
        assert not difflib.get_close_matches(name, Parameters.names(), cutoff=0.8)


def test_a_chapter_imports_from_tasklab_alone(path):
    for cell in _code(path):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom):
                assert node.module.split(".")[0] in PUBLIC
                if node.module.startswith("tasklab"):
                    assert node.module == "tasklab"
                    assert {alias.name for alias in node.names} <= set(tasklab.__all__)


def test_what_is_called_exists_and_takes_what_it_is_given(path):
    """Also in cells that wait for results that are not recorded yet."""
    tree = ast.parse("\n".join(cell.source for cell in _code(path)))
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {a.name for node in imports if node.module == "tasklab" for a in node.names} - own
    found = {ast.unparse(n): _named(n) for n in ast.walk(tree) if _root(n) in names}
    assert len(found) > 8
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        called = found.get(ast.unparse(call.func))
        if called is not None and not any(isinstance(one, ast.Starred) for one in call.args):
            words = {one.arg: None for one in call.keywords if one.arg}
            inspect.signature(called).bind_partial(*call.args, **words)


def _root(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _named(node):
    if isinstance(node, ast.Name):
        return getattr(tasklab, node.id)
    parent = _named(node.value)
    known = isinstance(parent, types.ModuleType | type)
    return getattr(parent, node.attr) if known else None


def test_it_is_a_row_of_the_table_of_chapters(path):
    chapter = chapters.chapter(path.stem)
    appendix = chapters.page_of(path.stem) == "more"
    title = f"{chapter.number}b. {chapter.label}: further results" if appendix else chapter.title
    assert nbformat.read(path, 4).cells[0].source.splitlines()[0] == f"# {title}"
    assert f'chapters.open("{path.stem}", Parameters.of(globals()))' in _code(path)[1].source
    relatives = re.findall(r'lab\.relative\("(\w+)"\)', "\n".join(c.source for c in _code(path)))
    assert {*relatives} - {"random"} <= {*chapter.needs("full")}


def _captions(path):
    return [cell.metadata["tasklab"] for cell in _code(path) if "tasklab" in cell.metadata]


def test_it_opens_with_a_title_and_has_more_prose_and_figures_than_code(path):
    cells = nbformat.read(path, 4).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    words = sum(len(cell.source) for cell in cells if cell.cell_type == "markdown")
    words += sum(len(one["caption"]) for one in _captions(path))
    removed, seen = [], []
    for cell in _code(path):
        (removed if "remove-input" in cell.metadata.get("tags", []) else seen).append(cell.source)
    nodes = [node for source in removed for node in ast.walk(ast.parse(source))]
    told = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    assert words + sum(map(len, told)) > sum(map(len, seen))  # sentences with numbers are no code


def test_every_figure_has_a_caption_and_a_name(path):
    for cell in _code(path):
        assert _draws(cell.source) == ("tasklab" in cell.metadata), cell.source
    told = _captions(path)
    names = [one["figure"] for one in told]
    assert names and len({*names}) == len(names)
    assert all(name.startswith("fig-") for name in names)
    assert all(one["caption"].endswith(".") for one in told)
    assert {*itertools.chain(*told)} <= {*inspect.signature(captions.caption).parameters}


def test_a_folded_figure_says_its_message(path):
    for cell in _code(path):
        if "hide-output" in cell.metadata.get("tags", []) and "tasklab" in cell.metadata:
            first = re.split(r"(?<=[.:])\s+(?=[A-Z*$λ])", cell.metadata["tasklab"]["caption"])[0]
            assert cell.metadata["mystnb"] == {"code_prompt_show": f"Figure: {first}"}


def _draws(source):
    *before, last = ast.parse(source).body
    if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.Call):
        return False
    name = ast.unparse(last.value.func)
    own = [
        node.name
        for node in before
        if isinstance(node, ast.FunctionDef)
        and "figures.book_figure" in map(ast.unparse, node.decorator_list)
    ]
    return name in own or (name.startswith("figures.") and not name.endswith(TABLES))


def test_words_of_drawings_have_the_colour_of_the_text(path):
    """Without a colour they are black, in a dark theme too."""
    for drawing in re.findall("<svg.*?</svg>", "\n".join(c.source for c in _code(path)), re.S):
        coloured = ElementTree.fromstring(drawing)
        for part in [one for one in coloured.iter() if "fill" in one.attrib]:
            for word in part.iter("text"):
                word.set("fill", part.get("fill"))
        assert [one.get("fill") for one in coloured.iter("text")].count("currentColor") > 0
        assert not [one.text for one in coloured.iter("text") if one.get("fill") in (None, "none")]


def test_links_lead_somewhere_in_jupyterlab(path):
    """To an anchor of an equation, a file, or the web: figures have no anchors there."""
    cells = nbformat.read(path, 4).cells
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    nodes = [node for cell in _code(path) for node in ast.walk(ast.parse(cell.source))]
    strings = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    links = re.findall(r"\]\(([^\s()]+)\)", "\n".join(texts + strings))
    assert len(links) > 1
    for link in links:
        place, _, anchor = link.partition("#")
        if not link.startswith("https://"):
            assert not place or (path.parent / place).is_file(), link
            assert not anchor or (not place and f'<a id="{anchor}"></a>' in "\n".join(texts)), link


def test_a_bad_parameter_fails_at_once_and_names_the_choices(path):
    first, second = (cell.source for cell in _code(path)[:2])
    for name, value in BAD.items():
        space = {}
        exec(first, space)
        space[name] = value
        caught = refuses(f"^(?=.*{name})(?=.*{value}).*$", exec, second, space)
        assert "\n" not in caught


OF_RECORDS = re.compile(
    r"(are|show) recorded runs|\b(with|have) (one|two|three|four|five) seeds?\b|\bminutes? on\b"
    r"|about \w+ minutes\b|\b(first|second|third|fourth|fifth) of \w+ blocks"
    r"|after the \w+th block\b"
)


def untrue_of_other_models(source):
    """Return paragraphs that are about the recorded runs alone, and do not say so."""
    told = re.compile(r"[Bb]y default|`live=|## Deviations")
    parts = source.split("\n\n") if "## Deviations" not in source else []
    return [one for one in parts if OF_RECORDS.search(one) and not told.search(one)]


def test_prose_that_never_changes_is_true_of_every_model(path):
    assert untrue_of_other_models("Results are recorded runs, with five seeds.")
    assert untrue_of_other_models("It takes the features after the fourth of six blocks.")
    assert not untrue_of_other_models("By default, results are recorded runs, with five seeds.")
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "markdown" and "found" not in cell.metadata.get("tags", []):
            assert untrue_of_other_models(cell.source) == []


def test_a_link_to_a_file_follows_no_word_of_a_table(path):
    cells = nbformat.read(path, 4).cells
    for before, cell in itertools.pairwise(cells):
        if "page.as_csv(" in cell.source and before.cell_type == "markdown":
            assert "able has" not in before.source


def test_numbers_of_results_are_computed(path, typed_results):
    notebook = nbformat.read(path, 4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            nodes = ast.walk(ast.parse(cell.source))
            texts = [n.value for n in nodes if isinstance(n, ast.Constant)]
            assert not [t for t in texts if isinstance(t, str) and typed_results(t)], cell.source
        elif "### A toy with a known answer" not in cell.source:
            computed = cell == found.cell_of(notebook.cells)  # another test compares it
            assert computed or not typed_results(cell.source), cell.source


def test_what_was_found_stands_in_a_notebook_before_it_runs(path):
    if path.stem.endswith(chapters.MORE):
        return
    cell = found.cell_of(nbformat.read(path, 4).cells)
    assert cell is not None and cell.source == found.wanted(path.stem)  # else: make locks
    assert "remove-cell" in cell.metadata["tags"]  # on the site the run prints it
    of = "eight encoders" if path.stem == "closed_vocab" else "`mini`"
    assert f"**Found** in recorded runs of {of}:" in cell.source
