"""The table of contents, and what tells that the book changed."""

from tasklab.book import sources
from tests.helpers import refuses


def test_a_missing_chapter_is_named(tmp_path):
    (tmp_path / "_toc.yml").write_text("root: index\nchapters:\n- file: notebooks/nothing\n")
    assert sources.pages(tmp_path) == ("index", "notebooks/nothing")
    refuses(r"notebooks/nothing\.ipynb", sources.chapters, tmp_path)


def test_every_chapter_is_in_the_table_of_contents(root):
    assert sorted(sources.chapters(root)) == sorted((root / "notebooks").glob("*.ipynb"))
