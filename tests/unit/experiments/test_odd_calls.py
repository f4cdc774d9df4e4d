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


OF = experiments
CALLS = {
    # numbers of tasks
    "n_tasks must be a list of whole numbers, not 2": [
        lambda lab: OF.addition(lab, NONLINEAR, n_tasks=2),
        lambda lab: merging(lab, NONLINEAR, n_tasks=2),
        lambda lab: OF.merged(lab, NONLINEAR, n_tasks=2),
        lambda lab: OF.merging_cost(lab, NONLINEAR, n_tasks=2),
    ],
    "each of n_tasks must be a whole number, not 'two'": [
        lambda lab: OF.addition(lab, NONLINEAR, n_tasks=["two"])
    ],
    "each of n_tasks must be at most 4, not 8": [
        lambda lab: OF.addition(lab, NONLINEAR, n_tasks=[8])
    ],
    "each of n_tasks must be at least 2, not 1": [lambda lab: merging(lab, NONLINEAR, n_tasks=[1])],
    "4 tasks do not make groups of 3": [lambda lab: OF.addition(lab, NONLINEAR, n_tasks=["3"])],
    "n_tasks is empty": [lambda lab: OF.addition(lab, NONLINEAR, n_tasks=[])],
    "n_tasks must be at least 1, not 0": [
        lambda lab: OF.stitched_negation(lab, NONLINEAR, n_tasks=0)
    ],
    "each of sizes must be at most 4, not 9": [
        lambda lab: OF.cross_task_sum(lab, NONLINEAR, sizes=[9])
    ],
    # methods
    "methods is empty": [
        lambda lab: OF.addition(lab, []),
        lambda lab: merging(lab, []),
        lambda lab: OF.rate_search(lab, []),
        lambda lab: OF.merging_rates(lab, []),
        lambda lab: OF.penalty_strengths(lab, []),
        lambda lab: OF.train(lab, []),
        lambda lab: OF.learning_rates(lab, []),
    ],
    "'nonlinear' is not affine in alpha": [
        lambda lab: OF.exact_alpha(lab, "nonlinear"),
        lambda lab: OF.exact_negation(lab, "nonlinear"),
    ],
    "unknown method 'nonlinaer': did you mean 'nonlinear'": [
        lambda lab: OF.learning_rates(lab, ["probe", "nonlinaer"])
    ],
    # rates and coefficients
    "each of rates must be a finite number of at least 0, not 'x'": [
        lambda lab: OF.merging_rates(lab, rates=["x"]),
        lambda lab: OF.learning_rates(lab, rates=[1e-3, "x"]),
    ],
    "each of rates must be above 0": [lambda lab: OF.rate_search(lab, NONLINEAR, [0])],
    "rates must be a list of numbers, not 0.1": [lambda lab: OF.budgets(lab, NONLINEAR, rates=0.1)],
    "rates is empty": [lambda lab: OF.learning_rates(lab, rates=[])],
    "did you mean 'ties'": [lambda lab: OF.merging_rates(lab, merges=["tie"])],
    "did you mean 'Textures'": [
        lambda lab: OF.learning_rates(lab, task="Textuers"),
        lambda lab: OF.averaging(lab, task="Textuers"),
    ],
    "alphas must be a list of at least one number": [
        lambda lab: OF.cross_task(lab, NONLINEAR, alphas=[]),
        lambda lab: OF.disentanglement(lab, NONLINEAR, alphas=[]),
    ],
    "alphas must ascend": [lambda lab: OF.disentanglement(lab, NONLINEAR, alphas=[1, 0])],
    "coefficients must be a list of at least one number": [
        lambda lab: OF.pair_errors(lab, NONLINEAR, coefficients=[]),
        lambda lab: OF.stitched_addition(lab, NONLINEAR, coefficients=[0]),
        lambda lab: OF.stitched_negation(lab, NONLINEAR, coefficients=[]),
    ],
    "a coefficient must be a finite number": [
        lambda lab: OF.cross_task_addition(lab, NONLINEAR, coefficient="x"),
        lambda lab: OF.cross_task_negation(lab, NONLINEAR, coefficient="x"),
        lambda lab: OF.cross_task_sum(lab, NONLINEAR, coefficient="x"),
    ],
    "scales must be distances other than 0": [
        lambda lab: OF.linear_gaps(lab, NONLINEAR, scales=[0])
    ],
    # pairs
    "one of a pair of tasks 'Nope'": [
        lambda lab: OF.cross_task(lab, NONLINEAR, pairs=[("Signs", "Nope")]),
        lambda lab: OF.disentanglement(lab, NONLINEAR, of=[("Signs", "Nope")]),
    ],
    "a pair is two different tasks, not Signs and Signs": [
        lambda lab: OF.disentanglement(lab, NONLINEAR, of=[("Signs", "Signs")])
    ],
    "a pair is two different tasks, not Signs and Places and Vehicles": [
        lambda lab: OF.disentanglement(lab, NONLINEAR, of=[TASKS[:3]]),
        lambda lab: OF.cross_task(lab, NONLINEAR, pairs=[TASKS[:3]]),
    ],
    r"a pair is two different tasks, not Signs\.$": [
        lambda lab: OF.cross_task(lab, NONLINEAR, pairs=["Signs"])
    ],
    "there is no pair of tasks": [lambda lab: OF.disentanglement(lab, NONLINEAR, of=[])],
    "n_pairs must be at least 1, not -1": [
        lambda lab: OF.disentanglement(lab, NONLINEAR, n_pairs=-1),
        lambda lab: OF.search_box(lab, NONLINEAR, n_pairs=-1),
    ],
    "n_pairs must be at least 1, not 0": [
        lambda lab: OF.disentanglement(lab, NONLINEAR, n_pairs=0)
    ],
    # blocks and groups of models
    r"block must be at most \d+, not 99": [
        lambda lab: OF.stitched_addition(lab, NONLINEAR, block=99),
        lambda lab: OF.stitched_negation(lab, NONLINEAR, block=99),
    ],
    "block must be at least 0, not -1": [
        lambda lab: OF.stitched_negation(lab, NONLINEAR, block=-1)
    ],
    "count must be at least 1, not 0": [lambda lab: OF.averaging(lab, count=0)],
    "count must be at most 6, not 7": [lambda lab: OF.averaging(lab, count=7)],
    # networks that are trained from scratch
    "unknown network 'foo'": [
        lambda lab: OF.theorem(lab, "foo"),
        lambda lab: OF.theorem(lab.sibling(steps=20), "foo"),
        lambda lab: OF.scratch_linearity(lab, "foo"),
    ],
    "setting, 'epochs': .*Choices: .*pretraining": [
        lambda lab: OF.scratch_linearity(lab, "mlp", epochs=3)
    ],
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
        lambda lab: OF.merging_rates(lab),
        lambda lab: OF.penalty_strengths(lab, ["tau_jp"]),
        lambda lab: OF.disentanglement(lab, NONLINEAR),
        lambda lab: OF.search_box(lab, NONLINEAR),
        lambda lab: OF.cross_task(lab, NONLINEAR),
        lambda lab: OF.cross_task_addition(lab, NONLINEAR),
        lambda lab: OF.cross_task_sum(lab, NONLINEAR),
        lambda lab: OF.pair_errors(lab, NONLINEAR),
        lambda lab: OF.stitched_addition(lab, NONLINEAR),
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
    refused(lambda lab: OF.closed_addition(lab, lambdas=lambdas), labs["closed"], told)


def test_models_that_have_a_head_each_are_not_averaged(labs):
    refused(OF.averaging, labs["trained"], "under one head.*take a lab with head='probe'")


def test_no_methods_are_the_pretrained_model_alone(labs):
    assert set(OF.single(labs["open"], [])["method"]) == {"pretrained"}
