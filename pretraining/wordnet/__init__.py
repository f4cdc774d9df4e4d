"""The third world: definitions of nouns from WordNet 3.0, and of verbs for its control task.

    apt-get install wordnet-base                       the source, data.noun and data.verb
    python -m pretraining.wordnet                      writes the tasks that ship, in seconds

The model of this world is not pre-trained here: `tasklab fetch minilm` fetches it.
"""
