"""Every licence of what ships has its text in the wheel, and every work its author."""

import tomllib

import pytest
from packaging.licenses import canonicalize_license_expression

from pretraining.icons import licences, source
from tasklab.tasks import icons

SETS = icons.sources()["sets"]
USED = sorted({one["licence"] for one in SETS.values()})
WORDS = {
    "MIT": "without restriction, including", "ISC": "with or without fee",
    "BSD-3-Clause": "Redistribution and use", "Apache-2.0": "TERMS AND CONDITIONS FOR USE",
    "OFL-1.1": "Reserved Font Name", "CC0-1.0": "CC0 1.0 Universal",
    "CC-BY-3.0": "Attribution 3.0", "CC-BY-4.0": "Attribution 4.0", "Unlicense": "public domain",
}  # fmt: skip


@pytest.mark.parametrize("name", USED)
def test_a_licence_has_its_text(root, name):
    text = (root / "licenses" / f"{name}.txt").read_text("utf-8")
    assert WORDS[name] in " ".join(text.split()) and len(text) > 500


def test_every_set_has_its_author_work_and_licence(root):
    for prefix, one in SETS.items():
        assert one["author"] and one["licence"] in source.LICENCES, prefix
        assert one["url"].startswith("http") and one["licence_url"].startswith("http"), prefix
    assert (root / "licenses" / licences.LIST).read_text("utf-8") == licences.listed()
    assert licences.listed().count("\n| ") == len(SETS) + 1


def test_the_package_names_all_licences_and_ships_the_texts(root):
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    assert canonicalize_license_expression(project["license"]) == project["license"]
    assert {*USED} <= {*project["license"].split(" AND ")}
    shipped = {file for pattern in project["license-files"] for file in root.glob(pattern)}
    wanted = {f"{name}.txt" for name in USED} | {"LICENSE", licences.LIST, "NOTICE.txt"}
    assert {file.name for file in shipped} == wanted
