"""Make a model forget one task.

Subtract a task vector, with the largest coefficient that keeps 95 % of the control accuracy.
"""

from tasklab import Lab


def main(model="mini", **settings):
    """Return the accuracies before and after; `settings` are parameters of the lab."""
    lab = Lab(model, tasks=["Signs", "Textures"], **settings)
    vector = lab.vector("Signs")

    control, chosen = lab.suite.control.name, 0.0
    for alpha in (0.2, 0.4, 0.6, 0.8, 1.0):  # on validation images
        (row,) = lab.evaluate(-alpha * vector, control, "val").rows
        print(f"-{alpha}: control {row['after']:.1f} % of {row['before']:.1f} %")
        if row["after"] >= 0.95 * row["before"]:
            chosen = alpha

    result = lab.evaluate(-chosen * vector)  # on test images
    print(result)
    return result


if __name__ == "__main__":
    main()
