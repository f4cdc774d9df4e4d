"""Add two skills to one model.

Fine-tune the model on two tasks, and add both task vectors to the pre-trained weights.
"""

from tasklab import Lab


def main(model="mini", **settings):
    """Return the accuracies before and after; `settings` are parameters of the lab."""
    lab = Lab(model, tasks=["Signs", "Textures"], **settings)

    signs, textures = lab.vector("Signs"), lab.vector("Textures")
    cosine = signs.cosine(textures)
    print(f"norms {signs.norm():.2f}, {textures.norm():.2f}, cosine {cosine:.3f}")

    alone = lab.evaluate(signs)  # one skill; the other task barely changes
    print(alone)

    both = lab.evaluate(0.75 * (signs + textures))  # as the book recommends
    print(both)  # in a notebook: a table with bars
    return both


if __name__ == "__main__":
    main()
