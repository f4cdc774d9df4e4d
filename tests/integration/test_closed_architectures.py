"""The closed-vocabulary models at full size with random weights, against their libraries' own."""

import functools
from pathlib import Path

import open_clip
import pytest
import timm
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images
from torch import nn
from transformers import ViTConfig, ViTMAEConfig, ViTMAEModel, ViTModel
from transformers.image_utils import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    IMAGENET_STANDARD_MEAN,
    IMAGENET_STANDARD_STD,
)

from tasklab import architectures
from tasklab.errors import TasklabError
from tasklab.models import loading, weights, zoo
from tasklab.tuning.methods import trainable
from tests.helpers import refuses

PHOTOGRAPH = torch.tensor(load_sample_images().images[0]).permute(2, 0, 1)[None]
STANDARD = (tuple(IMAGENET_STANDARD_MEAN), tuple(IMAGENET_STANDARD_STD))
DEFAULT = (tuple(IMAGENET_DEFAULT_MEAN), tuple(IMAGENET_DEFAULT_STD))
OPENAI = (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD)
FULL_SIZE = {  # blocks, features, mean and std
    "vitb16_in1k": (12, 768, STANDARD),
    "vitb16_in21k": (12, 768, STANDARD),
    "vitl16_in21k": (24, 1024, STANDARD),
    "mae_b16": (12, 768, DEFAULT),
    "dino_b16": (12, 768, DEFAULT),
    "clip_b16_laion400m": (12, 512, OPENAI),
    "clip_b16_laion2b": (12, 512, OPENAI),
    "clip_l14_laion2b": (24, 768, ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))),
}
BUILD = loading.build


@functools.cache
def noise():
    return torch.empty(4 * 10**7).uniform_(-0.05, 0.05, generator=torch.Generator().manual_seed(0))


def empty(make):
    with torch.device("meta"):
        model = make()
    model = model.to_empty(device="cpu").eval()
    for name, buffer in model.named_buffers():
        assert name == "attn_mask"  # of a text tower, which is not used here
        buffer.zero_()
    return model.requires_grad_(False)


def filled(make):
    """Fill a network with parts of the same numbers: drawing all of them takes the longest."""
    model, state = empty(make), {}
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict().items():
        start = int(torch.randint(len(noise()) - tensor.numel(), (), generator=generator))
        state[name] = noise()[start : start + tensor.numel()].view(tensor.shape)
        if tensor.ndim == 1 and name.endswith("weight"):  # gains of norms
            state[name] = state[name] + 1
    model.load_state_dict(state, assign=True)
    return model


@pytest.fixture(autouse=True)
def unfilled(monkeypatch):
    """Leave what a checkpoint fills empty before: drawn numbers would be overwritten."""
    monkeypatch.setattr(loading, "build", lambda entry: empty(lambda: BUILD(entry)))


def apart(model):
    return {name: x.clone() for name, x in model.state_dict().items()}


def class_token(model, x):
    order = {}
    if isinstance(model, ViTMAEModel):
        assert model.config.mask_ratio == 0  # it would choose patches at random
        order = {"noise": torch.arange(196.0)[None]}
    return model(pixel_values=x, **order).last_hidden_state[:, 0]


def check(encoder, reference):
    blocks, width, normalisation = FULL_SIZE[encoder.name]
    assert (encoder.image_size, (tuple(encoder.mean), tuple(encoder.std))) == (224, normalisation)
    assert len(encoder.blocks) == blocks and encoder.blocks[-1].endswith(f".{blocks - 1}")
    x = encoder.preprocess(PHOTOGRAPH)
    seen = []
    for name in encoder.blocks:
        module = encoder.module.get_submodule(name)
        module.register_forward_hook(lambda *_, name=name: seen.append(name))
    with torch.no_grad():
        ours, theirs = encoder(encoder.params, x), reference(x)
    assert seen == list(encoder.blocks)
    assert ours.shape == (1, width) and ours.std() > 0.01
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    names = trainable(encoder.params, "attention", encoder.name)
    assert len(names) == 2 * blocks  # q, k, v are one matrix; the output is another
    assert len(trainable(encoder.params, "attention_mlp_bias", encoder.name)) == 8 * blocks


def test_names_of_transformers_and_of_others(tmp_path):
    assert set(FULL_SIZE) | set(zoo.FAMILIES[0].values()) >= set(zoo.CLOSED_MODELS)
    assert set(FULL_SIZE) <= set(zoo.CLOSED_MODELS)
    tensors = {"vit.encoder.layer.0.attention.attention.query.weight": torch.zeros(2, 2)}
    save_file(tensors, tmp_path / "odd.safetensors")
    (tmp_path / "odd.pt").write_bytes(b"no checkpoint")
    refuses("not a checkpoint of tensors", weights.read_weights, tmp_path / "odd.pt")
    with pytest.raises(TasklabError, match=r"1 unexpected: blocks\.0\.attn\.q\.weight"):
        loading.load("dino_b16", weights=tmp_path / "odd.safetensors")


@pytest.mark.parametrize("name", ["vitb16_in1k", "vitb16_in21k"])
def test_timms_checkpoints(name, tmp_path):
    """The features are what timm's classifier of 1,000 or 21,843 classes reads."""
    entry = loading.spec(name)
    full = filled(lambda: timm.create_model(f"{entry.arch}.{entry.pretrained}"))
    assert full.num_classes == (1000 if name == "vitb16_in1k" else 21843)
    save_file(apart(full), tmp_path / "model.safetensors")
    clip = loading.load(name, weights=tmp_path / "model.safetensors")
    assert clip.text is None
    settings = timm.data.resolve_data_config({}, model=full)
    assert (settings["mean"], settings["std"]) == (clip.encoder.mean, clip.encoder.std)
    check(clip.encoder, lambda x: full.forward_head(full.forward_features(x), pre_logits=True))
    x = clip.encoder.preprocess(PHOTOGRAPH)
    torch.testing.assert_close(full.head(clip.encoder({}, x)), full(x), rtol=1e-4, atol=1e-4)


def test_the_masked_autoencoder_of_transformers(tmp_path):
    model = filled(lambda: ViTMAEModel(ViTMAEConfig(mask_ratio=0.0)))
    model.save_pretrained(
        tmp_path, state_dict=apart(model)
    )  # under the names that files on the hub have
    stored = tmp_path / "model.safetensors"
    whole = {f"vit.{k}": x for k, x in weights.read_weights(stored).items()}
    whole["decoder.mask_token"] = torch.zeros(1, 1, 512)  # files have the decoder, too
    assert "vit.encoder.layer.0.attention.attention.query.weight" in whole
    save_file(whole, stored)
    encoder = loading.load("mae_b16", weights=stored).encoder
    assert encoder.module.norm.eps == model.config.layer_norm_eps
    check(encoder, lambda x: class_token(model, x))


def test_dino_of_transformers_from_pytorchs_own_format(tmp_path):
    model = filled(lambda: ViTModel(ViTConfig(), add_pooling_layer=False))
    model.save_pretrained(tmp_path, state_dict=apart(model))
    stored = tmp_path / "pytorch_model.bin"
    torch.save(weights.read_weights(tmp_path / "model.safetensors"), stored)
    check(loading.load("dino_b16", weights=stored).encoder, lambda x: class_token(model, x))


@pytest.mark.slow
def test_the_large_vision_transformer_of_transformers(monkeypatch):
    """Without files of a gigabyte; the pooler that the checkpoint has is not used."""
    shape = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    model = filled(lambda: ViTModel(ViTConfig(**shape, intermediate_size=4096)))
    monkeypatch.setattr(loading, "read_weights", lambda path: model.state_dict())
    encoder = loading.load("vitl16_in21k", weights=Path(__file__)).encoder
    check(encoder, lambda x: class_token(model, x))


@pytest.mark.parametrize("name", ["clip_b16_laion400m", "clip_b16_laion2b"])
def test_open_clips_training_checkpoints_without_their_text_tower(name, tmp_path):
    entry = loading.spec(name)
    model = filled(lambda: open_clip.model.CLIP(**open_clip.get_model_config(entry.arch)))
    stored = tmp_path / entry.file
    state = {f"module.{k}": x for k, x in model.state_dict().items()}
    torch.save({"epoch": 171, "name": entry.pretrained, "state_dict": state}, stored)
    clip = loading.load(name, weights=stored)
    assert clip.text is None and all(not k.startswith("token") for k in clip.encoder.params)
    check(clip.encoder, model.encode_image)
    theirs = open_clip.create_model(entry.arch, pretrained=None, device="meta")
    preprocess = open_clip.get_model_preprocess_cfg(theirs)
    assert (preprocess["mean"], preprocess["std"]) == (clip.encoder.mean, clip.encoder.std)


@pytest.mark.slow
def test_the_large_clip_without_its_text_tower(monkeypatch):
    entry = loading.spec("clip_l14_laion2b")
    model = filled(lambda: open_clip.model.CLIP(**open_clip.get_model_config(entry.arch)))
    monkeypatch.setattr(loading, "read_weights", lambda path: model.state_dict())
    encoder = loading.load(entry.name, weights=Path(__file__)).encoder
    check(encoder, model.encode_image)
    activation = encoder.module.transformer.resblocks[0].mlp.gelu
    assert isinstance(activation, nn.GELU)  # QuickGELU belongs to OpenAI's weights


@pytest.mark.parametrize("generation", ["hub", "modules"])
def test_both_generations_of_transformers_names_are_known(generation, tmp_path):
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"intermediate_size": 64, "image_size": 32, "patch_size": 8}
    small = ViTModel(ViTConfig(**shape, layer_norm_eps=1e-6))  # timm's
    tensors = small.state_dict()
    if generation == "hub":
        small.save_pretrained(tmp_path)
        tensors = weights.read_weights(tmp_path / "model.safetensors")
    from timm.models.vision_transformer import VisionTransformer

    settings = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    ours = VisionTransformer(**settings, mlp_ratio=2, num_classes=0).eval()
    weights.fit(ours, architectures.vit_from_transformers(tensors), "small")
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        theirs = small.eval()(pixel_values=x).last_hidden_state[:, 0]
        torch.testing.assert_close(ours(x), theirs, rtol=1e-4, atol=1e-5)
