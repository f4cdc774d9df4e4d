"""Merge two fine-tuned models, and use the result in open_clip without tasklab."""

from pathlib import Path

import open_clip
import torch

from tasklab import Lab
from tasklab.__main__ import main as tasklab


def main(model="mini", folder=".", **settings):
    """Return image features by open_clip; `settings` are parameters of the lab."""
    lab, folder = Lab(model, **settings), Path(folder)
    tasks = ("Signs", "Textures")
    files = [lab.vector(task).save(folder / f"{task}.st") for task in tasks]

    vector, merged = folder / "merged.st", folder / "merged_model.safetensors"
    words = ["merge", *map(str, files), "--model", model, "--method", "tsv_m"]
    words += ["--out", str(vector), "--model-out", str(merged)]
    assert tasklab(words) == 0  # writes the model, its configuration and a card

    open_clip.add_model_config(merged.with_suffix(".json"))  # of models that open_clip lacks
    network = open_clip.create_model(merged.stem, pretrained=str(merged)).eval()
    with torch.no_grad():
        features = network.encode_image(torch.zeros(1, 3, 32, 32))
    print(f"{merged}: features of shape {tuple(features.shape)}")
    return features


if __name__ == "__main__":
    main()
