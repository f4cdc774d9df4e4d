"""Any image model of timm's by its name: features, blocks, weights, messages."""

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torchvision.transforms.functional import to_pil_image

from tasklab import Lab, Parameters
from tasklab.bench import inventory
from tasklab.models import loading, zoo
from tasklab.models.encoder import Encoder
from tasklab.tasks.images.decoding import Transform
from tests.helpers import refuses

# timm's own smallest models: one of each sort, the second with batch normalisation.
NAMES = ("test_vit.r160_in1k", "test_resnet.r160_in1k", "test_convnext.r160_in1k")


@pytest.mark.parametrize("name", NAMES)
def test_features_are_those_of_timm_without_its_classifier(name, tmp_path):
    torch.manual_seed(0)
    whole = timm.create_model(name, num_classes=1000).eval()
    for module in whole.modules():  # statistics that are not the initial ones
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
    file = tmp_path / "model.safetensors"
    save_file({k: v.contiguous() for k, v in whole.state_dict().items()}, file)
    encoder = loading.load(f"timm/{name}", weights=file).encoder
    images = torch.randint(0, 256, (2, 3, 160, 160), dtype=torch.uint8)
    x = encoder.preprocess(images)
    mean, std = (torch.tensor(whole.pretrained_cfg[k]).view(3, 1, 1) for k in ("mean", "std"))
    torch.testing.assert_close(x, (images / 255 - mean) / std)
    with torch.no_grad():
        wanted = whole.forward_head(whole.forward_features(x), pre_logits=True)
        torch.testing.assert_close(encoder(encoder.params, x), wanted, atol=1e-5, rtol=1e-5)
    assert len(encoder.blocks) >= 4
    assert not any(key.startswith(whole.pretrained_cfg["classifier"]) for key in encoder.params)


def card_of(name):
    whole = timm.create_model(name, num_classes=0)
    config = timm.data.resolve_model_data_config(whole, use_test_size=True)
    return whole, config, timm.data.create_transform(**config)


@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224.augreg_in21k", "resnet18.a1_in1k", "test_vit.r160_in1k",
        "resnet18.tv_in1k", "convnextv2_nano.fcmae_ft_in22k_in1k_384",
        "vit_small_patch16_lingbot.robbyant",
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [(300, 200), (90, 120)])
def test_images_are_prepared_as_the_card_says(name, size):
    whole, config, theirs = card_of(name)
    about = loading.images_of(zoo.spec(f"timm/{name}"), whole)
    encoder = Encoder.of(whole, **about)
    assert encoder.image_size == config["input_size"][-1]
    noise = torch.randint(0, 256, (3, size[1] // 9, size[0] // 9), dtype=torch.uint8)
    picture = to_pil_image(noise).resize(size)
    kept = Transform("centre", encoder.image_size, encoder.shorter, encoder.resize)(picture)
    torch.testing.assert_close(encoder.preprocess(torch.from_numpy(kept)[None])[0], theirs(picture))
    whole_picture = torch.from_numpy(np.array(picture).transpose(2, 0, 1))[None]
    same = torch.equal(
        encoder.preprocess(whole_picture), encoder.preprocess(torch.from_numpy(kept)[None])
    )
    assert same or size == (90, 120)  # on tensors and by Pillow: enlarging differs by rounding
    side = inventory.input_side(zoo.spec(f"timm/{name}"))
    assert side == (encoder.image_size, encoder.shorter, encoder.resize)


def test_checkpoints_and_towers():
    entry = zoo.spec("timm/resnet50")
    assert (entry.repository, entry.arch, entry.pretrained) == (
        "timm/resnet50.a1_in1k", "resnet50", "a1_in1k",
    )  # fmt: skip
    name = f"timm/{NAMES[0]}"
    assert Parameters(model=name).vocabulary == "closed" and zoo.family(name) == {}
    refuses("no text tower", Parameters, model=name, head="zero_shot")
    refuses("unknown model", Parameters, model="timm/")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("timm/resnet50.a1_in2k", "timm/resnet50.a1_in1k"),
        ("timm/resnt50.a1_in1k", "timm/resnet50.a1_in1k"),
        ("timm/nothing_like_it", "list_pretrained"),
    ],
)
def test_a_name_that_timm_does_not_have(name, told):
    refuses(told, lambda: Lab(Parameters(model=name, head="probe")))
