"""A hostile mirror of the hub writes nothing outside of the cache."""

import huggingface_hub
import pytest
from huggingface_hub.utils import _http

from tasklab.errors import TasklabError
from tasklab.storage import hub
from tests import hub as hubs
from tests.helpers import refuses

SHA256 = "2" * 64
OUT = "../../../../out"


@pytest.fixture
def mirror():
    with hubs.serve() as made:
        made.put("o/n", "m.bin", b"weights")
        yield made


@pytest.fixture(autouse=True)
def guarded(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    before = _http._GLOBAL_CLIENT_FACTORY
    hub.guard.cache_clear()
    hub.guard()
    yield
    huggingface_hub.set_client_factory(before)
    hub.guard.cache_clear()


def files(folder):
    return {str(one.relative_to(folder)) for one in folder.rglob("*")}


def download(mirror, tmp_path):
    cache = tmp_path / "a" / "cache"
    return huggingface_hub.hf_hub_download("o/n", "m.bin", endpoint=mirror.url, cache_dir=cache)


def test_an_honest_mirror_is_read(mirror, tmp_path):
    for etag in (f'"{SHA256}"', f'W/"{SHA256}"', '"5d41402abc4b2a76b9719d911017c592-12"'):
        mirror.headers["ETag"] = etag
        with open(download(mirror, tmp_path), "rb") as stream:
            assert stream.read() == b"weights"
    assert files(tmp_path) == {"a", *(name for name in files(tmp_path) if name.startswith("a/"))}


@pytest.mark.parametrize("status", ["200", "404"])
@pytest.mark.parametrize("header", ["ETag", "X-Linked-ETag", "X-Repo-Commit"])
@pytest.mark.parametrize("value", [OUT, "/{}/out", "..", "a/../../x", ".hidden", "", "a\\..\\b"])
def test_a_header_names_no_file_outside(mirror, tmp_path, header, value, status):
    mirror.headers[header] = value.format(tmp_path)
    mirror.faults["m.bin"] = ["404"] * 9 if status == "404" else []
    refuses(rf"answers with a {header} that names no file", download, mirror, tmp_path)
    assert files(tmp_path) <= {"a", "a/cache"}


@pytest.mark.parametrize("field", ["sha", "oid"])
def test_a_list_of_files_names_none_outside(mirror, tmp_path, field):
    mirror.told[field] = OUT
    with pytest.raises(TasklabError, match=rf"answers with a {field} that names no file"):
        cache = tmp_path / "a" / "c"
        huggingface_hub.snapshot_download("o/n", endpoint=mirror.url, cache_dir=cache)
    assert not any(name.startswith("out") for name in files(tmp_path))


def test_a_new_connection_is_guarded_too(mirror, tmp_path):
    _http.close_session()
    mirror.headers["ETag"] = OUT
    refuses("ETag", download, mirror, tmp_path)
