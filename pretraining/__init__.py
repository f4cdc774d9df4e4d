"""How the small models that ship with tasklab were pre-trained on the drawn world.

It runs from a clone and is no part of the installed package:

    python -m pretraining.queue --folder DIR      pre-train, resumable
    python -m pretraining.levels --weights FILE   what a pre-trained CLIP can do
    python -m pretraining.install --folder DIR    put weights and cards into the package
"""
