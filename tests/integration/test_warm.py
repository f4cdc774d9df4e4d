"""Kernels that are forks of one process."""

import gc
import shutil
import subprocess
import sys
import tempfile
import time
from multiprocessing import forkserver
from pathlib import Path

import nbformat
import pytest

from tasklab.book import execution, warm


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere kernels are processes of their own")
def test_kernels_share_what_one_process_has_imported(tmp_path, monkeypatch):
    forkserver._forkserver._stop()  # another test's, with what that one loaded
    server = warm.multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["colorsys"])
    monkeypatch.setattr(warm, "_server", lambda: server)
    told = "os.getppid(), 'colorsys' in sys.modules, os.getcwd(), x"
    through = "get_ipython().kernel.parent.transport"  # by files: a port may be taken meanwhile
    code = f"import os, sys\nprint({told}, {through})"
    parents = []
    for name in ("one", "two"):
        source = tmp_path / f"{name}.ipynb"
        cells = [nbformat.v4.new_code_cell("x = 1"), nbformat.v4.new_code_cell(code)]
        cells[0].metadata["tags"] = ["parameters"]
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), source)
        with (tmp_path / "log").open("w") as log:
            made = execution.execute(source, tmp_path / "out.ipynb", parameters={"x": 2}, log=log)
        parent, *told = made.cells[-1].outputs[0].text.split()
        assert told == ["True", str(tmp_path), "2", "ipc"]
        parents.append(parent)
    assert parents[0] == parents[1]


KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
INTERRUPTED = """
import multiprocessing, sys, time
from tasklab.book import warm
warm._server = lambda: multiprocessing.get_context("fork")
warm._start(time.sleep, 120)
sys.exit(130)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere kernels are processes of their own")
def test_a_command_that_ends_leaves_no_kernel():
    began = time.monotonic()
    assert subprocess.run([sys.executable, "-c", INTERRUPTED], timeout=100).returncode == 130
    assert time.monotonic() - began < 90
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE) as process:
        kernel = Path("/proc", process.stdout.readline().decode().strip())
        end = time.monotonic() + 60
        while kernel.exists() and time.monotonic() < end:
            time.sleep(0.1)
    assert kernel.name and not kernel.exists()


KILLED = """
import multiprocessing, os, signal, sys, time
from tasklab.book import warm
warm._server = lambda: multiprocessing.get_context("forkserver")
print(warm._start(time.sleep, 120).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


LEFT = """
import os, signal, sys
from pathlib import Path
import nbformat
from tasklab.book import execution, warm
os.chdir(sys.argv[2])
if sys.argv[1] == "kill":
    launch = warm.Manager._async_launch_kernel
    async def killed(self, *words, **more):
        await launch(self, *words, **more)
        os.kill(os.getpid(), signal.SIGKILL)
    warm.Manager._async_launch_kernel = killed
server = warm._server().set_forkserver_preload(["colorsys"])
with open("log", "w") as log:
    execution.execute(Path("a.ipynb"), Path("out.ipynb"), parameters={}, log=log)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere kernels are processes of their own")
def test_what_a_killed_report_left_in_the_temporary_folder_goes_with_the_next(
    tmp_path, monkeypatch, request
):
    temporary = Path(tempfile.mkdtemp())  # the name of a socket is short
    request.addfinalizer(lambda: shutil.rmtree(temporary))
    for name in ("TMPDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(temporary))
    cells = [nbformat.v4.new_code_cell("x = 1")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), tmp_path / "a.ipynb")
    for word, status in (("kill", -9), ("whole", 0)):
        words = [sys.executable, "-c", LEFT, word, str(tmp_path)]
        assert subprocess.run(words, timeout=300).returncode == status
        left = [one.name for one in temporary.iterdir() if one.name.startswith((".", "pymp", "k"))]
        assert (len(left) == 1) == (word == "kill") and len(left) < 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere kernels are processes of their own")
def test_a_fork_does_not_remove_the_folder_of_the_process_that_it_is_of():
    place = warm._room()
    child = warm.multiprocessing.get_context("fork").Process(target=gc.collect)
    child.start()
    child.join()
    assert child.exitcode == 0 and place.is_dir() and warm._room() == place
    warm.tempfile.mkdtemp(dir=place)
