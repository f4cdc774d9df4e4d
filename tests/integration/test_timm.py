"""A model of timm's in a chapter's experiments."""

from tasklab import Lab, Parameters, experiments

NAME = "timm/test_resnet.r160_in1k"  # with batch normalisation


def test_it_is_probed_and_its_vectors_are_added(tmp_path):
    """At a rate that is given; batch statistics stay those of pre-training."""
    parameters = Parameters(
        model=NAME, init="random", head="probe", steps=3, lr="0.01", store_root=tmp_path
    )
    lab = Lab(parameters, progress=False, tasks=("Textures", "Signs"))
    (one,) = experiments.schemes(lab, ["clip_more"])  # it stands alone, whatever the role
    run = one.tune("Signs", "nonlinear", 0)
    assert one.run("Signs", "nonlinear", 0).lr == 0.01
    assert set(run.vector.keys()) <= set(one.clip.encoder.params)
    assert run.vector.norm() > 0
    found = experiments.closed_addition(one)
    assert set(found["model"]) == {NAME}
    assert set(found["experiment"]) == {
        "single", "sweep", "addition", "addition_fine", "closed_cost",
    }  # fmt: skip
