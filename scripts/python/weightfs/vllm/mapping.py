"""Where the model's own loader puts each element of a checkpoint, learned by watching it once.

learn() runs `model.load_weights` over tensors that have a shape and no memory (device meta), under
a TorchDispatchMode, which sees every operation of this thread and of no other. Views are followed;
a copy into the model is noted and not made. So nothing is read, nothing is written, and tensor
parallel slices, packed QKV, gate and up, and experts are the loader's business.

A mapping is exact or there is none: each element of every parameter comes from one element of the
checkpoint, or was filled with a constant by the loader (padding). A loader that computes,
that decides by values, or that replaces parameters, is refused: CannotMap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# These give the same values in other memory. Followed as if they were the tensor itself.
COPIES = (aten.clone.default, aten._to_copy.default, aten.contiguous.default,
          aten.lift_fresh_copy.default, aten.alias_copy.default)
FILLS = (aten.fill_.Scalar, aten.zero_.default)


class CannotMap(Exception):
    """This model cannot be updated in place; the text says why."""


@dataclass(frozen=True)
class Source:
    """A tensor of the checkpoint."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(eq=False)
class Home:
    """A storage of the model that the loader writes to, as integers as wide as its elements."""

    name: str  # of its first parameter or buffer
    dtype: torch.dtype
    flat: torch.Tensor


@dataclass(frozen=True)
class Dimension:
    size: int
    source_stride: int
    home_stride: int


@dataclass(frozen=True)
class Copy:
    """Elements of one source that go to one home. Dimensions: widest stride of the source first."""

    home: Home
    source_offset: int
    home_offset: int
    dimensions: tuple[Dimension, ...]

    @property
    def source_end(self) -> int:
        """Behind the last element of the source."""
        return self.source_offset + 1 + sum((d.size - 1) * d.source_stride for d in self.dimensions)

    def find(self, indices: torch.Tensor) -> tuple[slice, torch.Tensor | None, torch.Tensor]:
        """Of ascending indices into the source: the part that may be in this copy, which of that
        part are (None: all), and the elements of the home where these go."""
        bounds = torch.tensor([self.source_offset, self.source_end], dtype=indices.dtype)
        begin, end = torch.searchsorted(indices, bounds).tolist()
        rest = indices[begin:end].to(torch.int64) - self.source_offset
        home = torch.full_like(rest, self.home_offset)
        inside: torch.Tensor | None = None
        for at, dimension in enumerate(self.dimensions):
            place = torch.div(rest, dimension.source_stride, rounding_mode="floor")
            rest -= place * dimension.source_stride
            home += place * dimension.home_stride
            if at > 0:  # the first one is bounded by the part
                fits = place < dimension.size
                inside = fits if inside is None else inside & fits
        if self.dimensions and self.dimensions[-1].source_stride != 1:
            inside = rest == 0 if inside is None else inside & (rest == 0)
        return slice(begin, end), inside, home if inside is None else home[inside]


@dataclass(eq=False)
class Mapping:
    sources: dict[str, Source]
    copies: dict[str, list[Copy]]
    anchors: list[tuple[str, int]]  # where the model's tensors lay

    def is_of(self, model: torch.nn.Module) -> bool:
        """Whether the model's tensors lie where they lay."""
        return self.anchors == anchors_of(model)


def tensors_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Parameters (True) and buffers (False), each with all of its names."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield name, parameter, True
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield name, buffer, False


def anchors_of(model: torch.nn.Module) -> list[tuple[str, int]]:
    return [(f"{name} {tuple(tensor.shape)} {tensor.stride()} {tensor.dtype}", tensor.data_ptr())
            for name, tensor, _ in tensors_of(model)]


def storage_of(tensor: torch.Tensor) -> int:
    """The same number for all tensors of one storage, of whatever device."""
    return int(tensor.untyped_storage()._cdata)


def flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor as integers as wide as its elements: NaN and -0.0 stay what
    they are."""
    integer = INTEGERS.get(tensor.element_size())
    if integer is None:
        raise CannotMap(f"elements of {tensor.element_size()} bytes ({tensor.dtype})")
    flat = torch.empty(0, dtype=integer, device=tensor.device)
    storage = tensor.untyped_storage()
    return flat.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))


def dimensions_of(shape: Sequence[int], source: Sequence[int],
                  home: Sequence[int]) -> tuple[Dimension, ...]:
    """Joined where both sides go on without a gap.
    Raises CannotMap if an index into the source does not say which element it is."""
    each = sorted((Dimension(*one) for one in zip(shape, source, home, strict=True) if one[0] != 1),
                  key=lambda one: -one.source_stride)
    joined: list[Dimension] = []
    for one in each:
        last = joined[-1] if joined else None
        if (last is not None and last.source_stride == one.size * one.source_stride
                and last.home_stride == one.size * one.home_stride):
            joined[-1] = Dimension(last.size * one.size, one.source_stride, one.home_stride)
        else:
            joined.append(one)
    reach = 0
    for one in reversed(joined):
        if one.source_stride <= reach:
            raise CannotMap("one element of the checkpoint goes to several places of a tensor")
        reach += (one.size - 1) * one.source_stride
    return tuple(joined)


@dataclass(eq=False)
class Written:
    """A region of a home, in the order in which the loader wrote it."""

    what: str
    is_fill: bool
    view: tuple[tuple[int, ...], tuple[int, ...], int]  # shape, strides, offset


@dataclass(eq=False)
class Watched:
    home: Home
    parameters: list[torch.Tensor] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)


class Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stands between a loader and its model."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.homes: dict[int, Watched] = {}
        self.sources: dict[str, Source] = {}
        self.copies: dict[str, list[Copy]] = {}
        self._of_storage: dict[int, Source] = {}
        self._fresh: set[int] = set()
        self._alive: list[torch.Tensor] = []  # so that no storage gets the number of another one
        for name, tensor, is_parameter in tensors_of(model):
            if tensor.device.type == "meta":
                raise CannotMap(f"'{name}' has no memory")
            watched = self.homes.get(storage_of(tensor))
            if watched is None:
                watched = Watched(Home(name, tensor.dtype, flat_of(tensor)))
                self.homes[storage_of(tensor)] = watched
            if watched.home.dtype != tensor.dtype:
                raise CannotMap(f"'{name}' and '{watched.home.name}' share memory as different "
                                "types")
            if is_parameter:
                watched.parameters.append(tensor.detach())

    def each(self, checkpoint: Iterable[Source]) -> Iterator[tuple[str, torch.Tensor]]:
        for source in checkpoint:
            if source.name in self.sources:
                raise CannotMap(f"the checkpoint has two tensors '{source.name}'")
            tensor = torch.empty(source.shape, dtype=source.dtype, device="meta")
            self.sources[source.name] = source
            self._of_storage[storage_of(tensor)] = source
            self._fresh.discard(storage_of(tensor))
            self._alive.append(tensor)
            yield source.name, tensor

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Of the checkpoint, or made by the loader."""
        return self.source_of(tensor) is not None or storage_of(tensor) in self._fresh

    def source_of(self, tensor: torch.Tensor) -> Source | None:
        return self._of_storage.get(storage_of(tensor)) if tensor.device.type == "meta" else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.copy_.default:
            return self._copy(*args[:2])
        if func is aten._local_scalar_dense.default and self.source_of(args[0]) is not None:
            raise CannotMap(f"the loader looks at the values of '{self._name(args[0])}'")
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if func in FILLS and storage_of(args[0]) in self.homes:
            return self._note(args[0], "a constant", True)
        self._check_writes(func, args, kwargs)
        sources = [one for one in tensors if self.source_of(one) is not None]
        if not sources:
            return self._run(func, args, kwargs)
        if func in COPIES:
            return self._follow(func, args[0], kwargs)
        if any(one.alias_info is None or one.alias_info.is_write for one in func._schema.returns):
            raise CannotMap(f"the loader computes with '{self._name(sources[0])}' ({func})")
        return func(*args, **kwargs)

    def _name(self, tensor: torch.Tensor) -> str:
        source = self.source_of(tensor)
        return "?" if source is None else source.name

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor) and storage_of(one) not in self.homes:
                self._fresh.add(storage_of(one))
                self._alive.append(one)
        return result

    def _follow(self, func: Any, tensor: torch.Tensor, kwargs: Any) -> torch.Tensor:
        dtype = kwargs.get("dtype")
        if dtype is not None and dtype != tensor.dtype:
            raise CannotMap(f"the loader converts '{self._name(tensor)}' to {dtype} ({func})")
        return torch.ops.aten.alias.default(tensor)  # type: ignore[no-any-return]

    def _check_writes(self, func: Any, args: Any, kwargs: Any) -> None:
        """Nothing but copies and constants may be written to what was there before."""
        for at, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = args[at] if at < len(args) else kwargs.get(argument.name)
            for one in tree_leaves(given):
                if not isinstance(one, torch.Tensor) or storage_of(one) in self._fresh:
                    continue
                watched = self.homes.get(storage_of(one))
                where = f"'{watched.home.name}'" if watched else "a tensor"
                raise CannotMap(f"the loader changes {where} by {func}")

    def _copy(self, to: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        known, watched = self.source_of(source), self.homes.get(storage_of(to))
        if known is None and watched is None and storage_of(to) in self._fresh:
            self._alive.append(to)
            return torch.ops.aten.copy_.default(to, source)  # type: ignore[no-any-return]
        if watched is None:
            raise CannotMap(f"the loader copies '{self._name(source)}' to a tensor that is neither "
                            "a parameter nor a buffer")
        if known is None:
            raise CannotMap(f"'{watched.home.name}' gets values that are not the checkpoint's")
        if to.numel() != source.numel():
            raise CannotMap(f"'{known.name}' is repeated in '{watched.home.name}'")
        if to.dtype != source.dtype and not (to.is_floating_point() and source.is_floating_point()):
            raise CannotMap(f"'{known.name}' is converted to {to.dtype}")
        if to.dtype != watched.home.dtype or source.dtype != known.dtype:
            raise CannotMap(f"the loader reads '{known.name}' as another type")
        self._note(to, f"'{known.name}'", False)
        if to.numel() > 0:
            source = source.expand(to.shape)
            try:
                dimensions = dimensions_of(to.shape, source.stride(), to.stride())
            except CannotMap as error:
                raise CannotMap(f"'{known.name}': {error}") from None
            self.copies.setdefault(known.name, []).append(Copy(
                watched.home, int(source.storage_offset()), int(to.storage_offset()), dimensions))
        return to

    def _note(self, to: torch.Tensor, what: str, is_fill: bool) -> torch.Tensor:
        if to.numel() > 0:
            view = (tuple(to.shape), tuple(to.stride()), int(to.storage_offset()))
            self.homes[storage_of(to)].written.append(Written(what, is_fill, view))
        return to

    def check_coverage(self) -> None:
        """Each element of every parameter once.
        Raises CannotMap."""
        for watched in self.homes.values():
            if watched.parameters and not tiles(watched):
                check_elements(watched)


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Row by row, without a gap."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def count_of(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def tiles(watched: Watched) -> bool:
    """Whether dense copies, one behind the other, are all that its only parameter consists of:
    what most are, and it takes no memory to see."""
    views = {(tuple(one.shape), one.stride(), one.storage_offset()) for one in watched.parameters}
    if len(views) != 1:
        return False
    shape, strides, begin = views.pop()
    pieces = sorted((one.view[2], count_of(one.view[0])) for one in watched.written
                    if not one.is_fill and is_dense(*one.view[:2]))
    if len(pieces) != len(watched.written) or not is_dense(shape, strides):
        return False
    end = begin
    for offset, count in pieces:
        if offset != end:
            return False
        end += count
    return end == begin + count_of(shape)


def check_elements(watched: Watched) -> None:
    """The same for all other ways, element by element.
    Raises CannotMap."""
    none, filled, copied = 0, 1, 2
    name = watched.home.name
    state = torch.zeros(watched.home.flat.numel(), dtype=torch.uint8)
    for one in watched.written:
        shape, strides, offset = one.view
        if any(size > 1 and stride == 0 for size, stride in zip(shape, strides, strict=True)):
            raise CannotMap(f"{one.what} is copied to one element of '{name}' more than once")
        region = state.as_strided(shape, strides, offset)
        if bool((region == copied).any()):
            raise CannotMap(f"{one.what} is copied over what was copied to '{name}' before")
        region.fill_(filled if one.is_fill else copied)
    for parameter in watched.parameters:
        region = state.as_strided(tuple(parameter.shape), parameter.stride(),
                                  parameter.storage_offset())
        missing = int((region == none).sum())
        if missing > 0:
            raise CannotMap(f"{missing} of {region.numel()} elements of '{name}' do not come from "
                            "the checkpoint")


class Shape:
    """Which modules and tensors a model consists of, and where these lie."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._entries: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (now, dict(now)) for module in model.modules()
            for now in (module._parameters, module._buffers, module._modules)]
        self._data = [(tensor, tensor.detach()) for _, tensor, _ in tensors_of(model)]

    def restore(self, is_loaders: Callable[[torch.Tensor], bool]) -> None:
        """Touches only what has changed: other threads compute with the model. Nothing, if a reload
        has begun meanwhile, which puts the model's tensors on meta: they are its own now.
        `is_loaders`: whether a tensor is one of those that the loader got or made."""
        if any(tensor.is_meta and not is_loaders(tensor) for now, _ in self._entries
               for tensor in now.values() if isinstance(tensor, torch.Tensor)):
            return
        for now, before in self._entries:
            for name in now.keys() - before.keys():
                del now[name]
            for name, one in before.items():
                if name not in now or now[name] is not one:
                    now[name] = one
        for tensor, data in self._data:
            if tensor.data_ptr() != data.data_ptr():
                tensor.data = data


def learn(model: torch.nn.Module, checkpoint: Iterable[Source]) -> Mapping:
    """Watches the model's loader. The model stays as it is.
    Raises CannotMap."""
    before, shape = anchors_of(model), Shape(model)
    watcher = Watcher(model)
    try:
        with torch.no_grad(), watcher:
            model.load_weights(watcher.each(checkpoint))  # type: ignore[operator]
        after = anchors_of(model)
    except CannotMap:
        raise
    except Exception as error:
        raise CannotMap(f"the loader fails without values: {type(error).__name__}: {error}") \
            from error
    finally:
        shape.restore(watcher.has_made)
    if after != before:
        raise CannotMap("the loader replaces the model's tensors")
    watcher.check_coverage()
    return Mapping(watcher.sources, watcher.copies, before)
