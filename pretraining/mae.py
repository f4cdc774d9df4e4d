"""Masked autoencoder: an image tower that learns to fill in what it does not see.

The model and its loss are those of transformers' `ViTMAEForPreTraining` [He et al., 2022]: the
encoder sees the patches that are not masked, a small decoder predicts the pixels of the others.
What is ours is the scale.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from pretraining.evaluate import probe_accuracy
from pretraining.loop import Recipe
from pretraining.objectives import pool_of
from tasklab.architectures import vit_from_transformers
from tasklab.mini import vit
from tasklab.mini.clip import normalise

# mask_ratio: by the probe on validation images; He et al. mask 0.75 of 196 patches, here are 16.
SETTINGS = {
    "mask_ratio": 0.75,
    "norm_pix_loss": False,
    "decoder_hidden_size": 64,
    "decoder_num_hidden_layers": 2,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 256,
}


class MaskedAutoencoder:
    """An image tower that learns to reconstruct masked patches.

    Args:
        name: Name of the model.
        recipe: How it is pre-trained.
        pool: Folder of pools.
    """

    def __init__(self, name: str, recipe: Recipe, pool: Path) -> None:
        self.name, self.recipe, self.settings = name, recipe, SETTINGS
        self.pool = pool_of(recipe, pool)

    def model(self) -> nn.Module:
        """Return the model to train: encoder and decoder."""
        from transformers import ViTMAEConfig, ViTMAEForPreTraining

        shape = vit.TOWERS[self.name]
        config = ViTMAEConfig(
            image_size=vit.SIZE,
            patch_size=vit.PATCH,
            hidden_size=shape["embed_dim"],
            num_hidden_layers=shape["depth"],
            num_attention_heads=shape["num_heads"],
            intermediate_size=4 * shape["embed_dim"],
            layer_norm_eps=1e-6,  # timm's
            **self.settings,
        )
        model = ViTMAEForPreTraining(config)
        for module in model.modules():
            # As He et al. do; transformers' 0.02 suits a width of 768, and at 128 and 64 the loss
            # does not fall below that of the picture's mean colour.
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
        return model

    def shard(self, index: int) -> tuple[Tensor]:
        """Return pictures."""
        return (self.pool.turn(index)["images"],)

    def loss(self, model: nn.Module, images: Tensor, step: int) -> Tensor:
        """Return the mean squared error of masked patches. Masks come from torch's global seed.

        Args:
            model: The model.
            images: Images, uint8 (n, 3, S, S).
            step: Number of the step.
        """
        with self.recipe.autocast(images.device):
            return model(pixel_values=normalise(images)).loss

    def after_step(self, model: nn.Module) -> None:
        """Nothing to do."""

    def evaluate(self, model: nn.Module, n: int) -> dict[str, float]:
        """Return accuracies of linear probes on n validation images of each task."""
        return probe_accuracy(self.shipped(model), n=n, fitted_to=2 * n)

    @torch.no_grad()
    def shipped(self, model: nn.Module) -> nn.Module:
        """Return the encoder in timm's layout; the decoder is thrown away."""
        tower = vit.build(self.name)
        tower.load_state_dict(vit_from_transformers(model.state_dict()))
        return tower
