"""Models with replaced features: the front of some, the back of another.

With f_l(x; theta) what block l gives, and B_l(theta; h) what the blocks after it make of h, a
stitched model is B_l(theta_0; h) of the pre-trained model, without a learnt layer between (cross-
task linearity, section 4.3). Two of them put arithmetic of weights and of features side by side:

- addition: h = (f_l(x; theta_0 + lambda tau_i) + f_l(x; theta_0 + lambda tau_j)) / 2   (figure 9);
- negation: h = f_l(x; theta_0) - (f_l(x; theta_0 + lambda tau) - f_l(x; theta_0)), beside
  h = f_l(x; theta_0 - lambda tau)                                                  (figure 10).

The front stops at block l, and the back begins after it: together they cost one pass.
"""

from __future__ import annotations

from tasklab.models.intercept import back, front

__all__ = ["back", "front"]
