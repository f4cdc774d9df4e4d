"""What an experiment cannot do is one sentence, before anything is trained or fitted."""

import functools

import pytest

from tasklab.evidence import experiments
from tasklab.evidence.experiments import Lab
from tasklab.evidence.experiments.merging import merging
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
    monkeypatch.setattr(finetune.Trainer, "__call__", None)
    monkeypatch.setattr(probes, "fit", None)
    monkeypatch.setattr(scratch, "train", None)


def of(name):
    return merging if name == "merging" else getattr(experiments, name)


N = NONLINEAR
CALLS = [  # what is told, experiments, and how they are called
    ("n_tasks must be a list of whole numbers, not 2", "addition merging merged merging_cost",
     lambda run, lab: run(lab, N, n_tasks=2)),
    ("each of n_tasks .* not 'two'", "addition", lambda run, lab: run(lab, N, n_tasks=["two"])),
    ("each of n_tasks must be at most 4, not 8", "addition",
     lambda run, lab: run(lab, N, n_tasks=[8])),
    ("each of n_tasks .* at least 2, not 1", "merging", lambda run, lab: run(lab, N, n_tasks=[1])),
    ("4 tasks .* groups of 3", "addition", lambda run, lab: run(lab, N, n_tasks=["3"])),
    ("n_tasks is empty", "addition", lambda run, lab: run(lab, N, n_tasks=[])),
    ("n_tasks .* at least 1, not 0", "stitched_negation", lambda run, lab: run(lab, N, n_tasks=0)),
    ("each of sizes .* most 4, not 9", "cross_task_sum", lambda run, lab: run(lab, N, sizes=[9])),
    # methods
    ("methods is empty",
     "addition merging rate_search merging_rates penalty_strengths train learning_rates",
     lambda run, lab: run(lab, [])),
    ("'nonlinear' is not affine in alpha", "exact_alpha exact_negation",
     lambda run, lab: run(lab, "nonlinear")),
    ("'nonlinaer': did you mean 'nonlinear'", "learning_rates",
     lambda run, lab: run(lab, ["probe", "nonlinaer"])),
    # rates and coefficients
    ("each of rates .* least 0, not 'x'", "merging_rates", lambda run, lab: run(lab, rates=["x"])),
    ("each of rates .* at least 0, not 'x'", "learning_rates",
     lambda run, lab: run(lab, rates=[1e-3, "x"])),
    ("each of rates must be above 0", "rate_search", lambda run, lab: run(lab, N, [0])),
    ("rates must be a list .* not 0.1", "budgets", lambda run, lab: run(lab, N, rates=0.1)),
    ("rates is empty", "learning_rates", lambda run, lab: run(lab, rates=[])),
    ("rates is empty", "budgets", lambda run, lab: run(lab, N, rates=())),
    ("each of lengths must be at least 1", "budgets", lambda run, lab: run(lab, N, lengths=(0,))),
    ("'posthoc' trains no vector", "rate_search", lambda run, lab: run(lab, ["posthoc"])),
    ("did you mean 'ties'", "merging_rates", lambda run, lab: run(lab, merges=["tie"])),
    ("did you mean 'Textures'", "learning_rates averaging",
     lambda run, lab: run(lab, task="Textuers")),
    ("alphas must be a list of at least one number", "cross_task disentanglement",
     lambda run, lab: run(lab, N, alphas=[])),
    ("alphas must ascend", "disentanglement", lambda run, lab: run(lab, N, alphas=[1, 0])),
    ("coefficients must be a list of at least one number", "pair_errors stitched_negation",
     lambda run, lab: run(lab, N, coefficients=[])),
    ("coefficients must be a list of at least one number", "stitched_addition",
     lambda run, lab: run(lab, N, coefficients=[0])),
    ("a coefficient must be a finite", "cross_task_addition cross_task_negation cross_task_sum",
     lambda run, lab: run(lab, N, coefficient="x")),
    ("scales .* other than 0", "linear_gaps", lambda run, lab: run(lab, N, scales=[0])),
    # pairs
    ("pair of tasks 'Nope'", "cross_task", lambda run, lab: run(lab, N, pairs=[("Signs", "Nope")])),
    ("a pair of tasks 'Nope'", "disentanglement",
     lambda run, lab: run(lab, N, of=[("Signs", "Nope")])),
    ("two different tasks, not Signs and Signs", "disentanglement",
     lambda run, lab: run(lab, N, of=[("Signs", "Signs")])),
    ("two different tasks, not Signs and Places and Vehicles", "disentanglement",
     lambda run, lab: run(lab, N, of=[TASKS[:3]])),
    ("two different tasks, not Signs and Places and Vehicles", "cross_task",
     lambda run, lab: run(lab, N, pairs=[TASKS[:3]])),
    (r"two different tasks, not Signs\.$", "cross_task",
     lambda run, lab: run(lab, N, pairs=["Signs"])),
    ("there is no pair of tasks", "disentanglement", lambda run, lab: run(lab, N, of=[])),
    ("n_pairs .* at least 1, not -1", "disentanglement search_box",
     lambda run, lab: run(lab, N, n_pairs=-1)),
    ("n_pairs .* at least 1, not 0", "disentanglement", lambda run, lab: run(lab, N, n_pairs=0)),
    # blocks and groups of models
    (r"block must be at most \d+, not 99", "stitched_addition stitched_negation",
     lambda run, lab: run(lab, N, block=99)),
    ("block .* at least 0, not -1", "stitched_negation", lambda run, lab: run(lab, N, block=-1)),
    ("count must be at least 1, not 0", "averaging", lambda run, lab: run(lab, count=0)),
    ("count must be at most 6, not 7", "averaging", lambda run, lab: run(lab, count=7)),
    # networks that are trained from scratch
    ("unknown network 'foo'", "theorem scratch_linearity", lambda run, lab: run(lab, "foo")),
    ("unknown network 'foo'", "theorem", lambda run, lab: run(lab.sibling(steps=20), "foo")),
    ("setting, 'epochs': .*Choices: .*pretraining", "scratch_linearity",
     lambda run, lab: run(lab, "mlp", epochs=3)),
]  # fmt: skip


def refused(call, lab, told):
    error = refuses(told, call, lab)
    assert "\n" not in error


@pytest.mark.parametrize(("told", "names", "call"), CALLS)
def test_it_is_refused_before_anything_is_trained(labs, told, names, call):
    for name in names.split():
        refused(functools.partial(call, of(name)), labs["open"], told)


def test_a_suite_of_one_task_has_nothing_to_compare(labs):
    names = "disentanglement search_box cross_task cross_task_addition cross_task_sum pair_errors"
    calls = [(of(name), N) for name in [*names.split(), "stitched_addition"]]
    calls += [(merging,), (of("merging_rates"),), (of("penalty_strengths"), ["tau_jp"])]
    for run, *more in calls:
        refuses("at least two tasks, not Signs alone", run, labs["alone"], *more)


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


def test_heads_of_their_own_and_no_methods(labs):
    refused(experiments.averaging, labs["trained"], "under one head.*take a lab with head='probe'")
    assert set(experiments.single(labs["open"], [])["method"]) == {"pretrained"}
