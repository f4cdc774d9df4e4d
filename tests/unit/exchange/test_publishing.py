"""A merged model computes in open_clip and in transformers what it computes here."""

import html
import re
import types

import pytest
import torch
import transformers
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

from tasklab.exchange import exporting, places, publishing
from tasklab.models import loading

MODEL = "mini_xs"


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("quick", [False, True])
def test_both_libraries_agree_on_a_network_with_either_activation(quick, tmp_path):
    torch.manual_seed(0)
    vision = CLIPVisionCfg(layers=2, width=64, head_width=16, patch_size=16, image_size=32)
    text = CLIPTextCfg(context_length=9, vocab_size=50, width=32, heads=2, layers=3)
    ours = CLIP(24, vision, text, quick_gelu=quick).eval()
    settings = publishing.transformers_settings(ours, 32)
    theirs = transformers.CLIPModel(transformers.CLIPConfig(**settings)).eval()
    missing, unexpected = theirs.load_state_dict(
        publishing.in_transformers(ours.state_dict()), strict=False
    )
    assert not unexpected and not missing
    x = torch.randn(2, 3, 32, 32)
    ids = torch.tensor([[48, 5, 49, 0, 0, 0, 0, 0, 0], [48, 7, 3, 3, 8, 1, 2, 6, 49]])
    with torch.no_grad():
        found = theirs(input_ids=ids, pixel_values=x)
        close(found.image_embeds, ours.encode_image(x, normalize=True))
        close(found.text_embeds, ours.encode_text(ids, normalize=True))


@pytest.mark.parametrize("kind", ["merged", "exported"])
def test_a_name_in_a_card_is_no_markup(kind, tmp_path):
    markdown = pytest.importorskip("markdown_it", reason="the extra `book` is not installed")
    odd = 'a<img src=x onerror="alert(1)">|`b` __c__ ~~d~~ [e](http://f) &amp; _g_ <!-- h_i'
    encoder = loading.load(MODEL).encoder
    if kind == "merged":
        about = {"title": "TIES", "paper": "2306.01708", "options": {}, "weights": "0", "base": odd}
        about["vectors"] = [
            {"vector": odd, "task": odd, "method": "nonlinear", "sha256": "0", "notes": [odd]}
        ]
        text = publishing.card(places.target(tmp_path / "m.pt"), encoder, about, "0")
    else:
        config = {"model": MODEL, "init": "pretrained", "task": odd, "method": "nonlinear"}
        config |= {"weights": encoder.weights_hash, "suite": odd}
        run = types.SimpleNamespace(config=config, record={})
        row = {"method": odd, "split": "test", "n": 1, "value": 50}
        text = exporting.card(run, [row], head=False, base=False)
    text = text.partition("---\n\n")[2].partition("## All of it")[0]
    page = markdown.MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(text)
    shown = re.sub(r"</?(h\d|p|table|t[rdh]|thead|tbody|ul|li|pre|code|strong)[^>]*>", "", page)
    assert "<" not in shown
    assert html.unescape(shown).count(odd) == (5 if kind == "merged" else 4)
