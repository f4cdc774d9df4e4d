"""Losses that stay on the device: the same numbers, and the step at which a run diverged."""

import pytest
import torch

from tasklab.tuning import session
from tasklab.tuning.recipe import FineTune
from tasklab.tuning.runs import DivergedError

CPU, GPU = torch.device("cpu"), torch.device("cuda")
RUN = FineTune(task="Signs", steps=100)


def filled(device, losses, norm=1.0):
    kept = session.Journal(RUN, [2.0], 10, device)
    for loss in losses:
        kept.add(torch.tensor(loss), torch.tensor(norm))
    return kept


def test_losses_are_read_every_few_dozen_steps_from_a_device():
    losses = [1.5 - 0.01 * step for step in range(40)]
    near, far = (filled(device, losses) for device in (CPU, GPU))
    assert len(near) == len(far) == 41
    assert near.note == f"loss {losses[-1]:.3f}"
    assert far.note == f"loss {losses[session.EVERY - 1]:.3f}"
    assert far.losses() == near.losses() == [2.0, *torch.tensor(losses).tolist()]


@pytest.mark.parametrize("at", [0, 3, session.EVERY - 1, session.EVERY])
def test_the_step_that_diverged_is_named_though_it_is_read_later(at):
    losses = [1.0] * at + [float("nan")] * (session.EVERY + 1)
    with pytest.raises(DivergedError, match=f"is not finite at step {at + 1} of 100") as found:
        filled(GPU, losses)
    assert found.value.step == at + 1


def test_a_norm_that_is_not_finite_stops_a_run_at_the_end_at_the_latest():
    kept = filled(GPU, [1.0, 1.0], norm=float("inf"))
    with pytest.raises(DivergedError, match="step 1 of 100: loss 1, gradient norm inf"):
        kept.losses()
    with pytest.raises(DivergedError, match="step 1"):
        filled(CPU, [1.0], norm=float("inf"))


def test_losses_far_beyond_guessing_stop_a_run_at_the_same_step_on_all_devices():
    rising = [1.0 + 0.5 * step for step in range(90)]
    steps = []
    for device in (CPU, GPU):
        with pytest.raises(DivergedError, match="diverges") as found:
            filled(device, rising)
        steps.append(found.value.step)
    assert steps[0] == steps[1] > 40
