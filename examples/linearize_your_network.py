"""Fine-tune your own network in its tangent space.

Any network of torch: f(x; theta_0) + J(x) tau is trained, an affine function of tau.
"""

import torch
from torch import nn

from tasklab import TaskVector, tangent
from tasklab.models import Encoder


def main(steps=100):
    """Return the losses of the linearized network."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 32), nn.GELU(), nn.Linear(32, 2))
    encoder = Encoder.of(network, name="my network", image_size=8)

    x = torch.randn(256, 3, 8, 8)
    y = (x.mean((1, 2, 3)) > 0).long()  # is the image bright?

    theta0 = encoder.params
    tau = {name: torch.zeros_like(tensor) for name, tensor in theta0.items()}
    losses = []
    for _ in range(steps):
        loss, gradient = tangent.value_and_grad(
            encoder, theta0, tau, x, lambda logits: nn.functional.cross_entropy(logits, y)
        )
        tau = {name: tensor - 0.1 * gradient[name] for name, tensor in tau.items()}
        losses.append(float(loss))

    vector = TaskVector(tau)
    f0, jtau = tangent.jvp(encoder, theta0, vector, x)
    right = ((f0 + jtau).argmax(-1) == y).float().mean()
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, accuracy {right:.2f}, {vector}")
    return losses


if __name__ == "__main__":
    main()
