"""Measure how much two task vectors disturb each other: the disentanglement error xi.

xi is the share of a task's images whose prediction the other task's vector changes.
"""

from tasklab import Lab
from tasklab.analyses.pair_errors import pair_errors


def main(model="mini_xs", **settings):
    """Return xi in % by method; `settings` are parameters of the lab."""
    lab = Lab(model, tasks=["Signs", "Textures"], **settings)
    found = {}
    for method in ("nonlinear", "linearized"):
        vectors = lab.vectors(method)
        linear = method == "linearized"
        rows = pair_errors(lab.evaluator, vectors, [0.5, 1.0], 256, linear=linear)
        for row in rows:
            if row["metric"] == "xi_pair":
                found[method, row["alpha"]] = row["value"]
                print(f"{method}, coefficient {row['alpha']}: xi {row['value']:.1f} %")
        one, two = vectors.values()
        print(f"{method}: cosine {one.cosine(two):.3f}, inner product {one @ two:.3f}")
    return found


if __name__ == "__main__":
    main()
