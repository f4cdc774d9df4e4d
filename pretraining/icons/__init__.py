"""The second world: real drawings by design teams, from the icon sets that Iconify collects.

    npm pack @iconify/json@2.2.535                       the source, 104 MB, once
    python -m pretraining.icons --folder DIR --source iconify-json-2.2.535.tgz

The command renders, cleans and splits the drawings, writes the tasks that ship and the corpus of
pre-training, and can be interrupted at any time; `python -m pretraining.queue` pre-trains.
"""
