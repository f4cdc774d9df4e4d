"""What the site makes of a chapter's Markdown, which JupyterLab shows as it is."""


def test_links_to_pages_are_paths_to_files_in_notebooks_alone(extension):
    for name, shown in {
        "notebooks/ctl": "[m](../method.md)",
        "speed": "[m](../book/method.md)",
    }.items():
        source = ["[m](../book/method.md)"]
        extension("captions")._pages_beside(None, name, source)
        assert source == [shown]
