"""`Run`: tensors that `fourfold.record` keeps, and their means."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from fourfold.core.edits import Columns, Place
from fourfold.errors import InputError


class Run(Mapping[str, Tensor]):
    """Recorded tensors by name. In cached decoding, the tokens of all calls are concatenated.

    A run holds one call of the model, or one sequence of calls with a cache.
    """

    def __init__(self, mask: Tensor | Mapping[str, Tensor] | None) -> None:
        self._mask = mask
        self._tensors: dict[str, Tensor] = {}
        self._means: dict[str, Tensor] = {}
        self._calls: dict[str, Columns] = {}

    def __getitem__(self, name: str) -> Tensor:
        """Return the tensor of a name.

        Raises:
            InputError: It was not recorded.
        """
        if name not in self._tensors:
            raise InputError(f"must have {name}, which was not recorded", option="run")
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names in the order of their computation."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._tensors)

    def store(self, x: Tensor, place: Place, grad: bool) -> None:
        """Keep a tensor, or append the tokens of a later call of cached decoding."""
        if problem := "under vmap" * torch._C._are_functorch_transforms_active():
            raise InputError(f"must not be computed {problem}", option=place.name)
        if not grad:
            with torch.inference_mode(False):  # a copy that later runs can use for gradients
                x = x.detach().clone()
        if (
            place.slot == "weights" and place.first_key
        ):  # column j is key j, also if a window drops the first keys
            x = nn.functional.pad(x, (place.first_key, 0))
        before, call = self._tensors.get(place.name), self._calls.get(place.name)
        if before is not None and call is not place.call:
            # k and v hold earlier tokens again, unless a window dropped them.
            fits = len(before) == len(x) and before.shape[place.axis] >= place.first
            # The parts of a record with a graph would not be in the graph of the output.
            if not fits or grad or place.call.first == 0 or place.call.problem:
                message = "must be of one call, or of one sequence of cached decoding without beams"
                raise InputError(message, option=f"the record of {place.name}")
            before = before.narrow(place.axis, 0, place.first)
            if place.slot == "weights":  # later queries have more keys
                before = nn.functional.pad(before, (0, x.shape[-1] - before.shape[-1]))
            x = torch.cat([before, x], place.axis)
        self._tensors[place.name], self._calls[place.name] = x, place.call
        self._means.pop(place.name, None)

    def mean(self, place: Place) -> Tensor:
        """Return the mean over rows and real tokens, computed in at least fp32."""
        if place.name not in self._means:
            x = self[place.name]
            y = x.to(torch.promote_types(x.dtype, torch.float32)).movedim(place.axis, 1)
            mask = self._mask
            if isinstance(mask, Mapping):
                of_memory = ".cross.k" in place.name or ".cross.v" in place.name
                name = "encoder." if of_memory else place.name
                found = [m for stack, m in mask.items() if name.startswith(f"{stack}.")]
                if not found:
                    message = f"must have the stack of {place.name}, got {', '.join(mask)}"
                    raise InputError(message, option="mask of the run")
                mask = found[0]
            if mask is not None:
                if mask.shape != y.shape[:2]:
                    message = f"must have the shape {tuple(y.shape[:2])} of the tokens of"
                    raise InputError(
                        f"{message} {place.name}, got {tuple(mask.shape)}", option="mask of the run"
                    )
                self._means[place.name] = y[mask].mean(0)
            else:
                self._means[place.name] = y.flatten(0, 1).mean(0)
        center = self._means[place.name]  # (H, D), (D,), (F,) or ()
        return center if place.axis == -1 else center.unsqueeze(-2)
