"""Published checkpoints of the full-size image towers: their names in every layout."""

import open_clip
import pytest
import torch
import transformers
from torch import nn

from tasklab.exchange import layouts, reading
from tasklab.models import loading

HUB = {  # of openai/clip-vit-*, as their config.json gives them
    "vitb32": {"hidden_size": 768, "intermediate_size": 3072, "patch_size": 32},
    "vitb16": {"hidden_size": 768, "intermediate_size": 3072, "patch_size": 16},
    "vitl14": {
        "hidden_size": 1024, "intermediate_size": 4096, "patch_size": 14, "projection_dim": 768,
        "num_hidden_layers": 24, "num_attention_heads": 16,
    },
}  # fmt: skip
COUNTS = {"vitb32": 152, "vitb16": 152, "vitl14": 296}


class ImageEncoder(nn.Module):
    """As the papers save it, with open_clip's present classes."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        if hasattr(model, "transformer"):
            del model.transformer


def hub_config(name):
    return transformers.CLIPVisionConfig(hidden_act="quick_gelu", image_size=224, **HUB[name])


def published(state):
    prefix = "vision_model."
    own = {n: x for n, x in state.items() if not n.startswith("visual_projection")}
    named = {f"{prefix}{n.removeprefix(prefix)}": x for n, x in own.items()}
    count = len(state[next(n for n in state if n.endswith("position_embedding.weight"))])
    named[f"{prefix}embeddings.position_ids"] = torch.arange(count)[None]
    return named


@pytest.mark.parametrize("name", HUB)
def test_names_and_shapes_are_complete(name):
    """In every layout, without memory: no weight is drawn."""
    own = reading.shapes(name)
    assert len(own) == COUNTS[name]
    with torch.device("meta"):
        hub = transformers.CLIPVisionModelWithProjection(hub_config(name)).state_dict()
        clip = open_clip.model.CLIP(**open_clip.get_model_config(loading.spec(name).arch))
    projection = hub["visual_projection.weight"]
    with_projection = published(hub) | {"visual_projection.weight": projection}
    encoder = ImageEncoder(clip)
    params = {f"model.params.{i}": p for i, p in enumerate(encoder.parameters())}
    lists = params | {n.replace("params", "params0"): p for n, p in params.items()}
    for state in (with_projection, encoder.state_dict(), clip.visual.state_dict(), lists):
        found = layouts.recognise(state, own)
        assert {n: x.shape for n, x in found.theta.items()} == own
        if found.theta0 is not None:
            assert {n: x.shape for n, x in found.theta0.items()} == own
    missing = layouts.recognise(published(hub), own).theta
    assert own.keys() - missing.keys() == {"proj"}
