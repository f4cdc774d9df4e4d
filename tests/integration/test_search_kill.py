"""A search that is killed at any moment goes on: no evaluation is made twice, nothing is half."""

import json
import os
import random
import signal
import sys
import time

import torch

from tasklab.__main__ import main
from tasklab.models import loading
from tasklab.storage.journal import Journal
from tests.vectors import noise

KILLS = 2
WORDS = ["--model", "mini_xs", "--steps", "1"]  # few images


def compare(words, folder):
    """Run the command with a pause between each evaluation and its line in the journal."""
    os.chdir(folder)
    one = Journal.__call__

    def logged(self, name, make):
        def made():
            value = make()
            with open("log", "a") as log:
                log.write(f"{self.file.parent.name} {name}\n")
            time.sleep(0.05)
            return value

        return one(self, name, made)

    Journal.__call__ = logged
    torch.set_num_threads(1)
    with open("out", "w") as sys.stdout:
        sys.exit(main([*words, "--store-root", "store"]))


def test_killed_at_random_it_ends_as_if_never_killed(forks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    encoder, files = loading.load("mini_xs").encoder, []
    for seed, task in enumerate(("Signs", "Textures", "Vehicles")):
        files.append(str(noise(encoder.params, seed).save(tmp_path / f"{task}.safetensors")))
    words = ["compare", *files, *WORDS, "--methods", "ties,least_few", "--out", "r.html", "--json"]
    draw, kills = random.Random(0), 0
    while True:
        before = len((tmp_path / "log").read_text().splitlines()) if kills else 0
        process = forks.Process(target=compare, args=(words, tmp_path))
        process.start()
        wait = draw.randrange(1, 10)  # evaluations until it is killed
        while process.is_alive():
            log = tmp_path / "log"
            made = len(log.read_text().splitlines()) - before if log.exists() else 0
            if made >= wait and kills < KILLS:
                process.kill()
                break
            time.sleep(0.01)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
        assert not (tmp_path / "r.html").exists()
    assert kills == KILLS
    lines = (tmp_path / "log").read_text().splitlines()
    again = len(lines) - len(set(lines))
    assert again <= kills and len(lines) > 15  # at most the one that was being written
    assert main([*words, "--store-root", "other"]) == 0
    whole, found = json.loads(capsys.readouterr().out), json.loads((tmp_path / "out").read_text())
    for one in (*whole["merges"], *found["merges"]):
        del one["seconds"]
    assert found == whole
    assert not [*tmp_path.glob(".*")] and not [*(tmp_path / "store" / "partial").glob("*/*")]


def test_a_half_written_line_counts_as_absent(tmp_path):
    journal = Journal(tmp_path / "j")
    assert journal("a", lambda: [1.5, float("-inf")]) == [1.5, float("-inf")]
    with (tmp_path / "j").open("a") as file:
        file.write('["b", 2')
    again = Journal(tmp_path / "j")
    assert "a" in again and "b" not in again
    assert again("b", lambda: 3) == 3 and again("a", lambda: 0) == [1.5, float("-inf")]
    assert len(Journal(tmp_path / "j")) == 2


def test_a_damaged_line_and_all_after_it_count_as_absent(tmp_path):
    whole = Journal(tmp_path / "j")
    for number in range(4):
        whole(f"n{number}", lambda: 71.25)
    lines = (tmp_path / "j").read_text().splitlines(keepends=True)
    for harmed in (lines[2].replace("71.25", "71.35"), lines[2].replace("n2", "n7"), "[1, 2]\n"):
        (tmp_path / "j").write_text("".join([*lines[:2], harmed, lines[3]]))
        again = Journal(tmp_path / "j")
        assert len(again) == 2 and again("n2", lambda: 1.5) == 1.5
        assert len(Journal(tmp_path / "j")) == 3
