"""Where the weights of the embedded models lie: most beside this file, some in the data folder."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tasklab.errors import TasklabError, shown
from tasklab.storage import folders

FOLDER = Path(__file__).parent / "weights"


def extra_folder() -> Path:
    """Return the folder of weights that are too many to ship, `DATA/pretrained`."""
    return folders.data() / "pretrained"


def weights_path(name: str = "mini") -> Path:
    """Return the path of a model's weights (fp16 safetensors), shipped ones or of the data folder.

    Its card lies beside it. If they are nowhere, it is where shipped ones should be.
    """
    shipped = FOLDER / f"{name}.safetensors"
    if shipped.exists():
        return shipped
    extra = extra_folder() / shipped.name
    return extra if os.path.exists(extra) else shipped  # also where it may not be looked


def card(name: str = "mini") -> dict:
    """Return a model's card: data, steps, machine, seed, accuracies, hash."""
    file = weights_path(name).with_suffix(".json")
    try:
        told = json.loads(file.read_text("utf-8"))
        if re.fullmatch("[0-9a-f]{64}", told["sha256"]):
            return told
        why = "its checksum is none"
    except OSError as error:
        why = str(error.strerror)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
    raise TasklabError(
        f"the card {file} of pre-trained weights cannot be read ({shown(why, 100)}). Reinstall "
        "tasklab."
    )
