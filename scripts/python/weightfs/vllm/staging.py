"""The changes of one version, each with its place in the model.

stage() proves, before anything is written, that the model has the old version there: the bits of
every element that will change are those of the old values. apply() looks once more, at some of them
everywhere, because it is in the pause, and to look takes longer than to write; then it writes. What
fails in the middle is put back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from weightfs.deltas import Change
from weightfs.vllm.mapping import INTEGERS, Home, Mapping

LOOKED_AT = 1 << 16  # elements in the pause; any other version differs in far more than one of them


class WrongVersion(Exception):
    """The model does not have what the change begins with."""


@dataclass(eq=False)
class Scatter:
    """The changes of one home: home.flat[indices] is old, and becomes new."""

    home: Home
    indices: torch.Tensor
    new: torch.Tensor
    old: torch.Tensor

    def check(self, every: int = 1) -> None:
        """The first element, and each `every`th after it."""
        # Of what gathers and scatters, these are the quickest on a CPU, two to five times.
        found, old = self.home.flat.index_select(0, self.indices[::every]), self.old[::every]
        if not torch.equal(found, old):
            raise WrongVersion(f"{int((found != old).sum())} of {len(old)} elements of "
                               f"'{self.home.name}' that will change do not have the old values")

    def write(self, values: torch.Tensor) -> None:
        self.home.flat.scatter_(0, self.indices, values)


@dataclass(eq=False)
class Staged:
    scatters: list[Scatter]
    kinds: frozenset[str]  # of the tensors that change
    changes: int  # elements of this rank

    def check(self, at_most: int | None = None) -> None:
        every = 1 if at_most is None else -(-self.changes // at_most)
        for scatter in self.scatters:
            scatter.check(max(1, every))

    def apply(self) -> None:
        """All or nothing.
        Raises WrongVersion, and whatever a write does."""
        self.check(LOOKED_AT)
        begun: list[Scatter] = []
        try:
            for scatter in self.scatters:
                begun.append(scatter)
                scatter.write(scatter.new)
            synchronize(self.scatters)
        except BaseException:
            for scatter in reversed(begun):
                scatter.write(scatter.old)
            synchronize(begun)
            raise


def synchronize(scatters: list[Scatter]) -> None:
    for device in {one.home.flat.device for one in scatters}:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def kind_of(change: Change) -> str:
    """The same for a tensor of each layer and expert: "model.layers.#.mlp.w.weight torch.bfloat16".
    """
    return f"{re.sub('[0-9]+', '#', change.name)} {change.values.dtype}"


def bits(values: torch.Tensor, home: Home) -> torch.Tensor:
    """As the loader would have written them."""
    return values.to(home.dtype).view(INTEGERS[home.flat.element_size()])


def stage(mapping: Mapping, changes: Iterable[Change]) -> Staged:
    """Raises WrongVersion; CannotMap (see changes_of)."""
    parts: dict[int, tuple[Home, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]] = {}
    kinds: set[str] = set()
    for change in changes:
        kinds.add(kind_of(change))
        for copy in mapping.copies.get(change.name, ()):
            part, inside, places = copy.find(change.indices)
            if places.numel() == 0:
                continue
            new, old = change.values[part], change.old[part]
            if inside is not None:
                new, old = new[inside], old[inside]
            _, of_home = parts.setdefault(id(copy.home), (copy.home, []))
            of_home.append((places, bits(new, copy.home), bits(old, copy.home)))
    scatters = []
    for home, of_home in parts.values():
        device = home.flat.device
        indices, new, old = (torch.cat(arrays).to(device) for arrays in zip(*of_home, strict=True))
        scatters.append(Scatter(home, indices, new, old))
    staged = Staged(scatters, frozenset(kinds), sum(len(one.indices) for one in scatters))
    staged.check()
    synchronize(scatters)
    return staged
