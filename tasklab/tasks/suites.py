"""Tasks (class names and prompts) and the suites they form: eight tasks and a control."""

from __future__ import annotations

import collections
import dataclasses
import functools
import html
import importlib.util
import json
import re
import runpy
import string
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from tasklab import mini
from tasklab.errors import TasklabError, abridged, choose, shown, unknown
from tasklab.mini.catalog import TASKS, with_articles
from tasklab.storage import shipped
from tasklab.tasks import icons

SuiteName = Literal["mini", "mini_text", "paper", "icons", "wordnet"]
SUITES = get_args(SuiteName)
GLOSSES = "wordnet"  # the third world
OF_TEXTS = ("mini_text", GLOSSES)
OWN = "own"  # the suite of the tasks that a Lab is given, in place of one of these
_LONGEST_NAME = 200  # bytes: systems take 255, and files are named after tasks
_LONGEST_TEXT = 500  # characters: CLIP reads 77 tokens
_UNPRINTED = r"[\x00-\x1f\x7f\ud800-\udfff]"
_PAPER = Path(__file__).with_name("paper_tasks.json")


# Pairs of tasks whose disentanglement is mapped, by the papers' data sets.
PAIRS = (("DTD", "SUN397"), ("EuroSAT", "SVHN"), ("Cars", "RESISC45"), ("IMDB", "QASC"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where the images of a task come from, if they are not embedded. One of the first three."""

    data_set: str | None = None  #: Name of a data set of the papers, an entry of `paper_tasks.json`
    #: A folder of images, one folder per class, with or without one per split above.
    folder: Path | None = None
    #: A data set of the Hugging Face hub, `owner/name`, whose files are parquet.
    hub: str | None = None
    config: str | None = None  #: Which of the hub data set's configurations, if it has several
    revision: str | None = None  #: Commit, branch or tag on the hub; `None` is the main branch
    image: str = "image"  #: Name of the column of images
    label: str = "label"  #: Name of the column of labels


def inputs(suite: str) -> str:
    """Return the inputs of a suite in the plural: texts or images.

    >>> inputs("wordnet"), inputs("own")
    ('texts', 'images')
    """
    return "texts" if suite in OF_TEXTS else "images"


def check_name(name: str) -> None:
    """Raise if a task cannot be called so: folders are named after it."""
    plain = isinstance(name, str) and re.fullmatch(r"[^/\\\x00-\x1f\ud800-\udfff]+", name)
    if not plain or not name.strip(". ") or len(name.encode()) > _LONGEST_NAME:
        raise TasklabError(
            f"{shown(name)} cannot name a task: give name=, a name without slashes and not only of "
            f"dots, of at most {_LONGEST_NAME} bytes."
        )


def _check_text(kind: str, text: object, task: str) -> None:
    if not isinstance(text, str) or not text.strip() or re.search(_UNPRINTED, text):
        raise TasklabError(f"{kind} of {task} must be a text of one line, not {shown(text)}.")
    if len(text) > _LONGEST_TEXT:
        raise TasklabError(
            f"{kind} of {task} has {len(text):,} characters; at most {_LONGEST_TEXT} fit a prompt."
        )


def spoken(name: str) -> str:
    r"""Return a class name as tokenizers read it: lower case, one space, one form of each letter.

    >>> spoken(" Ice  cream"), spoken("cafe\N{COMBINING ACUTE ACCENT}") == spoken("Caf\xe9")
    ('ice cream', True)
    """
    return " ".join(unicodedata.normalize("NFC", html.unescape(name)).lower().split())


def check_differ(task: str, words: Sequence[str], names: Sequence[str] | None = None) -> None:
    """Check that prompts of all classes differ: of two equal ones, one is never predicted.

    Args:
        task: Its name, for the message.
        words: What prompts call the classes.
        names: What the message calls them; by default the same.

    Raises:
        TasklabError: If two are equal but for case and spaces.
    """
    counted = collections.Counter(map(spoken, words))
    pairs = zip(words if names is None else names, words, strict=True)
    if same := [name for name, word in pairs if counted[spoken(word)] > 1]:
        raise TasklabError(
            f"of {task}, the classes {abridged(map(repr, same))} do not differ in prompts (case "
            "and spaces do not count): give classes=, all different."
        )


def _fields(template: str) -> list[tuple[str | None, ...]]:
    """Return name, format and conversion of every field of a template; `{}` has none of them."""
    try:
        return [part[1:] for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError:  # a brace without its other half
        return []


@dataclasses.dataclass(frozen=True)
class Written:
    """A template whose text differs by more than the class name: the prompt of each class."""

    texts: tuple[tuple[str, str], ...]  #: Class name and prompt

    def format(self, name: str) -> str:
        """Return the prompt of a class, as the method of a text does."""
        return dict(self.texts)[name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A classification task that a zero-shot head can be made for."""

    name: str
    classes: tuple[str, ...]  #: Name of each class; the index is the label
    #: Prompts with one `{}` each, for the class name, or `Written` ones.
    templates: tuple[str | Written, ...]
    stand_in_for: str  #: The data set of the papers whose place it takes
    control: bool = False  #: Whether it is the task that editing must leave alone
    source: Source | None = None  #: Where its images come from; `None` for the embedded tasks
    articles: bool = False  #: Whether prompts have "an" where English does
    #: Whether classes may share a name. Two pairs do in the CLIP paper's list for ImageNet; a
    #: zero-shot head cannot tell such classes apart.
    repeats: bool = False

    def __post_init__(self) -> None:
        check_name(self.name)
        for field, kind in (("classes", "class"), ("templates", "template")):
            listed = getattr(self, field)
            if isinstance(listed, str) or not isinstance(listed, Sequence):
                raise TasklabError(f"{field} of {self.name} must be a list, not {shown(listed)}.")
            for one in listed:
                written = isinstance(one, Written)
                for text in (text for _, text in one.texts) if written else (one,):
                    _check_text(f"a {kind}", text, self.name)
            object.__setattr__(self, field, tuple(listed))
        if len(self.classes) < 2:
            raise TasklabError(f"task {self.name} needs at least two classes, all different.")
        if not self.repeats:
            check_differ(self.name, self.classes)
        if not self.templates:
            raise TasklabError(f"task {self.name} has no prompt template.")
        for template in self.templates:
            if isinstance(template, Written):
                if lacking := {*self.classes} - {*dict(template.texts)}:
                    raise TasklabError(f"a template of {self.name} lacks {abridged(lacking, 4)}.")
            elif _fields(template) != [("", "", None)]:
                raise TasklabError(
                    f"template {shown(template)} of {self.name} needs exactly one '{{}}', for the "
                    "class, and no other braces."
                )

    @property
    def place(self) -> Source:
        """The source of a task that has one."""
        if self.source is None:
            raise TasklabError(f"{self.name} is an embedded task: it has no source.")
        return self.source

    def prompts(self) -> list[str]:
        """Return the prompts: for each class, one of each template."""
        texts = [form.format(name) for name in self.classes for form in self.templates]
        return list(map(with_articles, texts)) if self.articles else texts

    @property
    def chance(self) -> float:
        """Accuracy of guessing, for classes that are equally frequent."""
        return 1 / len(self.classes)


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tasks in the papers' order, and the control task."""

    name: str  #: One of `SUITES`
    tasks: tuple[Task, ...]  #: The tasks that are learnt, added and forgotten
    control: Task  #: The task on which the damage of forgetting is measured
    #: Its images (`drawn.SuiteImages`), or `None` for an embedded suite, which draws them.
    data: Any = dataclasses.field(default=None, compare=False, repr=False)
    usual: tuple[str, ...] = ()  #: The tasks that a Lab takes by default; empty for all
    #: Sets of tasks, by their size, that were drawn before any method was compared on them.
    sets: Mapping[int, tuple[tuple[str, ...], ...]] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    def __repr__(self) -> str:
        return f"Suite({self.name}: {', '.join(self.names)}; control {self.control.name})"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tasks, without the control's."""
        return tuple(task.name for task in self.tasks)

    def by_default(self) -> Suite:
        """Return the suite of the tasks that a Lab takes by default, without its sets of others."""
        if not self.usual:
            return self
        return dataclasses.replace(self, tasks=tuple(map(self.__getitem__, self.usual)), sets={})

    def __getitem__(self, name: str) -> Task:
        for task in (*self.tasks, self.control):
            if task.name == name:
                return task
        raise unknown(f"task of suite {self.name!r},", name, (*self.names, self.control.name))

    @classmethod
    def from_tasks(cls, *tasks: Task, control: Task | None = None) -> Suite:
        """Return a suite of your own tasks; `control` is by default the embedded control task."""
        control = suite("mini").control if control is None else control
        for task in (*tasks, control):
            if not isinstance(task, Task):
                raise TasklabError(f"a suite is made of tasks, not of {shown(task)}.")
        names = [task.name for task in (*tasks, control)]
        if not tasks or len(set(names)) < len(names):
            raise TasklabError(f"a suite needs tasks with different names, not {names[:-1]}.")
        return cls("own", tasks, control)


def suite(name: str = "mini") -> Suite:
    """Return the suite of that name.

    >>> suite("mini")["Handwritten"].stand_in_for
    'MNIST'
    """
    choose("suite", name, SUITES)
    return _suite(name)


@functools.cache
def _suite(name: str) -> Suite:
    if name == GLOSSES:
        return _of_glosses()
    if name == icons.NAME:
        tasks = [icon_task(entry) for entry in icons.sources()["tasks"]]
    elif name == "paper":
        tasks = [paper_task(entry) for entry in paper_data_sets().values()]
    else:
        entries = TASKS if name == "mini" else mini.TEXT_TASKS
        tasks = [Task(**entry, articles=name == "mini") for entry in entries]
    controls = [task for task in tasks if task.control]
    if len(controls) != 1:
        raise TasklabError(f"suite {name!r} needs one control task, not {len(controls)}.")
    tasks = [task for task in tasks if not task.control]
    more: Any = {"usual": icons.usual(), "sets": icons.sets()} if name == icons.NAME else {}
    return Suite(name, tuple(tasks), controls[0], **more)


def icon_task(entry: Mapping[str, Any]) -> Task:
    """Return a task of the second world from its entry in the table."""
    fields = ("name", "classes", "templates", "control")
    return Task(**{key: entry[key] for key in fields}, stand_in_for=entry["name"])


def _of_glosses() -> Suite:
    """Return the third world: glosses of WordNet, classified by the defined words."""
    from tasklab.tasks import wordnet  # here: images are evaluated without it

    def task(name: str) -> Task:
        terms: dict[str, Any] = {"classes": wordnet.classes(name), "templates": wordnet.TEMPLATES}
        return Task(name=name, stand_in_for=name, control=name == wordnet.CONTROL, **terms)

    tasks = tuple(map(task, wordnet.TASKS))
    return Suite(GLOSSES, tasks, task(wordnet.CONTROL), usual=wordnet.DEFAULT, sets=wordnet.sets())


def several(suite: Suite) -> tuple[str, ...]:
    """Return the names of a suite's tasks, or raise if it has only one."""
    if len(suite.names) < 2:
        raise TasklabError(f"this takes at least two tasks, not {', '.join(suite.names)} alone.")
    return suite.names


def pairs_of(suite: Suite) -> list[tuple[str, ...]]:
    """Return the pairs of tasks that stand in for the papers'.

    Of the icons and the glosses, these are the tasks in turn, two by two; of other suites the first
    two.
    """
    if suite.name in (icons.NAME, GLOSSES):
        return list(zip(suite.names[::2], suite.names[1::2], strict=False)) or [suite.names]
    names = {task.stand_in_for: task.name for task in suite.tasks}
    there = [tuple(names[one] for one in pair) for pair in PAIRS if set(pair) <= names.keys()]
    return there or [suite.names[:2]]


@functools.cache
def paper_data_sets() -> dict[str, dict[str, Any]]:
    """Return the entries of `paper_tasks.json`, the papers' data sets, by name."""
    return {entry["name"]: entry for entry in json.loads(shipped.content(_PAPER))["tasks"]}


def paper_task(entry: Mapping[str, Any]) -> Task:
    """Return a task of the papers; ImageNet's names and prompts are those of open_clip."""
    name, control = entry["name"], entry.get("control", False)
    classes, templates = entry["classes"], entry["templates"]
    if "open_clip" in (classes, templates):
        package = importlib.util.find_spec("open_clip")  # importing all of it takes seconds
        folder = (package and package.submodule_search_locations or [""])[0]
        maintained = runpy.run_path(str(Path(folder, "zero_shot_metadata.py")))
        classes = maintained["IMAGENET_CLASSNAMES"]
        templates = [write("{}") for write in maintained["OPENAI_IMAGENET_TEMPLATES"]]
    return Task(
        name=name, classes=tuple(classes), templates=tuple(templates), stand_in_for=name,
        control=control, repeats=control, source=Source(data_set=name),
    )  # fmt: skip
