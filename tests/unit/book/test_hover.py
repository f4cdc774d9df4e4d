"""What a link of the site shows before it is followed."""

import json
import re
import types

FIGURE = """<section id="sums">
<h2>Sums<a class="headerlink" href="#sums">#</a></h2>
<figure class="align-default" id="fig-sums"><img src="../_images/a.svg"/>
<figcaption><p>Fig. 1 <b>Sums</b> of \\(\\tau\\) &amp; more.
<a class="headerlink" href="#fig-sums">#</a></p></figcaption>
</figure></section><section id="rest"><p>Nothing.</p></section>"""
PAPER = """<div class="citation" id="id1" role="doc-biblioentry"><span class="label">
<span class="fn-bracket">[</span>A, 2020<span class="fn-bracket">]</span></span>
<p>A. A. <em>Sums</em>. arXiv:2001.00001.</p></div>"""
LINKS = """<body><article><a class="x" href="notebooks/a.html#fig-sums">one</a>
<a href="notebooks/a.html#sums">two</a> <a href="notebooks/a.html#rest">three</a>
<a href="bibliography.html#id1">four</a> <a href="https://arxiv.org/abs/2001.00001">five</a>
</article></body>"""


def test_links_show_figures_and_papers(extension, tmp_path):
    pages = {"index": LINKS, "notebooks/a": FIGURE, "bibliography": PAPER}
    for name, text in pages.items():
        path = tmp_path / f"{name}.html"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    app = types.SimpleNamespace(outdir=tmp_path, builder=types.SimpleNamespace(format="html"))
    extension("hover")._write(app, None)
    text = (tmp_path / "index.html").read_text()
    told = json.loads(re.search(r'id="tl-tips">(.*?)</script>', text)[1])
    figure, paper = (
        ["Fig. 1 Sums of tau & more.", "_images/a.svg", 0],
        ["A. A. Sums. arXiv:2001.00001."],
    )
    assert told == {
        "notebooks/a.html#fig-sums": figure,
        "notebooks/a.html#sums": figure,  # the section's first
        "bibliography.html#id1": paper,
        "https://arxiv.org/abs/2001.00001": paper,
    }
    glossary = '<dl><dt id="term-span">span<a></a></dt>\n<dd><p>All <em>sums</em>.</p></dd></dl>'
    assert extension("hover").tips(glossary, "method.html") == {"term-span": ["All sums."]}
    assert "tl-tips" not in (tmp_path / "notebooks/a.html").read_text()
