"""What an experiment cannot do is one sentence, before anything is trained or fitted."""

import pytest

from tasklab import experiments
from tasklab.experiments import Lab
from tasklab.experiments.merging import merging
from tasklab.tuning import finetune, probes, scratch
from tests.helpers import refuses

TASKS = ("Signs", "Places", "Vehicles", "Textures")
NONLINEAR = ["nonlinear"]


@pytest.fixture(scope="module")
def labs(tmp_path_factory):
    of = {"store_root": tmp_path_factory.mktemp("store"), "steps": 1, "progress": False}
    return {
        "open": Lab("mini_xs", tasks=TASKS, **of),
        "alone": Lab("mini_xs", tasks="Signs", **of),
        "closed": Lab("mini_xs", head="probe", tasks=TASKS, **of),
        "trained": Lab("mini_xs", head="trained", tasks=TASKS, **of),
    }


@pytest.fixture(autouse=True)
def _nothing_is_trained(monkeypatch):
    def never(*_, **__):
        raise AssertionError("trained before it was refused")

    monkeypatch.setattr(finetune.Trainer, "__call__", never)
    monkeypatch.setattr(probes, "fit", never)
    monkeypatch.setattr(scratch, "train", never)


def of(name, *args, **named):
    """Return a call of an experiment, but for the lab."""
    return lambda lab: getattr(experiments, name)(lab, *args, **named)


CALLS = {
    # numbers of tasks
    "n_tasks must be a list of whole numbers, not 2": [
        of("addition", NONLINEAR, n_tasks=2),
        lambda lab: merging(lab, NONLINEAR, n_tasks=2),
        of("merged", NONLINEAR, n_tasks=2),
        of("merging_cost", NONLINEAR, n_tasks=2),
    ],
    "each of n_tasks must be a whole number, not 'two'": [
        of("addition", NONLINEAR, n_tasks=["two"])
    ],
    "each of n_tasks must be at most 4, not 8": [of("addition", NONLINEAR, n_tasks=[8])],
    "each of n_tasks must be at least 2, not 1": [lambda lab: merging(lab, NONLINEAR, n_tasks=[1])],
    "4 tasks do not make groups of 3": [of("addition", NONLINEAR, n_tasks=["3"])],
    "n_tasks is empty": [of("addition", NONLINEAR, n_tasks=[])],
    "n_tasks must be at least 1, not 0": [of("stitched_negation", NONLINEAR, n_tasks=0)],
    "each of sizes must be at most 4, not 9": [of("cross_task_sum", NONLINEAR, sizes=[9])],
    # methods
    "methods is empty": [
        of("addition", []),
        lambda lab: merging(lab, []),
        of("rate_search", []),
        of("merging_rates", []),
        of("penalty_strengths", []),
        of("train", []),
        of("learning_rates", []),
    ],
    "'nonlinear' is not affine in alpha": [
        of("exact_alpha", "nonlinear"),
        of("exact_negation", "nonlinear"),
    ],
    "unknown method 'nonlinaer': did you mean 'nonlinear'": [
        of("learning_rates", ["probe", "nonlinaer"])
    ],
    # rates and coefficients
    "each of rates must be a finite number of at least 0, not 'x'": [
        of("merging_rates", rates=["x"]),
        of("learning_rates", rates=[1e-3, "x"]),
    ],
    "each of rates must be above 0": [of("rate_search", NONLINEAR, [0])],
    "rates must be a list of numbers, not 0.1": [of("budgets", NONLINEAR, rates=0.1)],
    "rates is empty": [of("learning_rates", rates=[])],
    "did you mean 'ties'": [of("merging_rates", merges=["tie"])],
    "did you mean 'Textures'": [
        of("learning_rates", task="Textuers"),
        of("averaging", task="Textuers"),
    ],
    "alphas must be a list of at least one number": [
        of("cross_task", NONLINEAR, alphas=[]),
        of("disentanglement", NONLINEAR, alphas=[]),
    ],
    "alphas must ascend": [of("disentanglement", NONLINEAR, alphas=[1, 0])],
    "coefficients must be a list of at least one number": [
        of("pair_errors", NONLINEAR, coefficients=[]),
        of("stitched_addition", NONLINEAR, coefficients=[0]),
        of("stitched_negation", NONLINEAR, coefficients=[]),
    ],
    "a coefficient must be a finite number": [
        of("cross_task_addition", NONLINEAR, coefficient="x"),
        of("cross_task_negation", NONLINEAR, coefficient="x"),
        of("cross_task_sum", NONLINEAR, coefficient="x"),
    ],
    "scales must be distances other than 0": [of("linear_gaps", NONLINEAR, scales=[0])],
    # pairs
    "one of a pair of tasks 'Nope'": [
        of("cross_task", NONLINEAR, pairs=[("Signs", "Nope")]),
        of("disentanglement", NONLINEAR, of=[("Signs", "Nope")]),
    ],
    "a pair is two different tasks, not Signs and Signs": [
        of("disentanglement", NONLINEAR, of=[("Signs", "Signs")])
    ],
    "a pair is two different tasks, not Signs and Places and Vehicles": [
        of("disentanglement", NONLINEAR, of=[TASKS[:3]]),
        of("cross_task", NONLINEAR, pairs=[TASKS[:3]]),
    ],
    r"a pair is two different tasks, not Signs\.$": [of("cross_task", NONLINEAR, pairs=["Signs"])],
    "there is no pair of tasks": [of("disentanglement", NONLINEAR, of=[])],
    "n_pairs must be at least 1, not -1": [
        of("disentanglement", NONLINEAR, n_pairs=-1),
        of("search_box", NONLINEAR, n_pairs=-1),
    ],
    "n_pairs must be at least 1, not 0": [of("disentanglement", NONLINEAR, n_pairs=0)],
    # blocks and groups of models
    r"block must be at most \d+, not 99": [
        of("stitched_addition", NONLINEAR, block=99),
        of("stitched_negation", NONLINEAR, block=99),
    ],
    "block must be at least 0, not -1": [of("stitched_negation", NONLINEAR, block=-1)],
    "count must be at least 1, not 0": [of("averaging", count=0)],
    "count must be at most 6, not 7": [of("averaging", count=7)],
    # networks that are trained from scratch
    "unknown network 'foo'": [
        of("theorem", "foo"),
        lambda lab: experiments.theorem(lab.sibling(steps=20), "foo"),
        of("scratch_linearity", "foo"),
    ],
    "setting, 'epochs': .*Choices: .*pretraining": [of("scratch_linearity", "mlp", epochs=3)],
}


def refused(call, lab, told):
    error = refuses(told, call, lab)
    assert "\n" not in error


@pytest.mark.parametrize(
    ("told", "call"), [(told, call) for told, calls in CALLS.items() for call in calls]
)
def test_it_is_refused_before_anything_is_trained(labs, told, call):
    refused(call, labs["open"], told)


@pytest.mark.parametrize(
    "call",
    [
        lambda lab: merging(lab),
        of("merging_rates"),
        of("penalty_strengths", ["tau_jp"]),
        of("disentanglement", NONLINEAR),
        of("search_box", NONLINEAR),
        of("cross_task", NONLINEAR),
        of("cross_task_addition", NONLINEAR),
        of("cross_task_sum", NONLINEAR),
        of("pair_errors", NONLINEAR),
        of("stitched_addition", NONLINEAR),
    ],
)
def test_a_suite_of_one_task_has_nothing_to_compare(labs, call):
    refused(call, labs["alone"], "at least two tasks, not Signs alone")


@pytest.mark.parametrize(
    ("lambdas", "told"),
    [
        ([0.333], "lambdas must begin at 0"),
        ([0.1, 0.2], "lambdas must begin at 0"),
        ([], "lambdas must be a list of at least one number"),
        (0.3, "lambdas must be a list of numbers"),
        ([0, 1, 0.5], "must ascend"),
    ],
)
def test_coefficients_of_closed_vocabularies_begin_at_0(labs, lambdas, told):
    refused(lambda lab: experiments.closed_addition(lab, lambdas=lambdas), labs["closed"], told)


def test_models_that_have_a_head_each_are_not_averaged(labs):
    refused(experiments.averaging, labs["trained"], "under one head.*take a lab with head='probe'")


def test_no_methods_are_the_pretrained_model_alone(labs):
    assert set(experiments.single(labs["open"], [])["method"]) == {"pretrained"}
