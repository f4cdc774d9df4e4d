"""Hash of theta_0 at loading: refuse a network that was changed in place.

Keys of the store have the hash of theta_0, which is computed once. A training loop of a user's own
over `encoder.module` would change the weights behind it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from tasklab import isolation
from tasklab.errors import TasklabError
from tasklab.storage import seals


class Origin:
    """The network and the parameters of an encoder, sealed.

    Args:
        name: The model's.
        module: Its network, in eval mode.
        params: theta_0.
    """

    def __init__(self, name: str, module: nn.Module, params: Mapping[str, Tensor]) -> None:
        self._name, self._module, self.params, self._hash = name, module, params, ""
        self._count, self._state = seals.count(params), self._found()

    def _found(self) -> tuple[Any, ...]:
        buffers, parts = dict(self._module.named_buffers()), self._module.modules()
        places = [id(parameter) for parameter in self._module.parameters()]
        training = any(part.training for part in parts)
        return (*self.params,), seals.stamp((self.params, buffers)), places, training

    @property
    def intact(self) -> bool:
        """Whether theta_0 and the network around it are unchanged."""
        found = self._found()
        if found == self._state:
            return True
        (names, _, *rest), (usual, _, *others) = found, self._state
        if names != usual or rest != others or not self._hash or self._hash != self._digest():
            return False
        self._count, self._state = seals.count(self.params), found  # the same values again
        return True

    def check(self) -> None:
        """Raise a `TasklabError` if the network was changed.

        An isolated call looks once. Outside, where no result is cached, a change is looked for in
        microseconds: values changed through `tensor.data` are not seen.
        """
        if isolation.inside() or self._count != seals.count(self.params):
            self._compare()

    def hash(self) -> str:
        """Return the SHA-256 of theta_0 (names, shapes and values); check that it still is."""
        self._compare()
        self._hash = self._hash or self._digest()
        return self._hash

    def _compare(self) -> None:
        if isolation.first(id(self)) and not self.intact:
            raise TasklabError(
                f"the network of {self._name!r} was changed since it was loaded: load it again "
                "(a new Lab, or models.load), and train a copy, copy.deepcopy(encoder.module)."
            )

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self.params.items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(seals.bits(tensor))
        return digest.hexdigest()
