"""Policies tried on a function: names to save over a range of prices of a byte, or subsets of the user's names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import jax

from remat.jax.policies.naming import Body, Naming, body_of, narrow_places, regions_of
from remat.jax.policies.saving import Judged, NamedStep
from remat.jax.step.program import Value, trace, trace_pair
from remat.jax.step.tasks import Task

#: Prices of a byte: this many, each a factor from the next, around the seconds of a step by the bytes of its values.
PRICES, FACTOR = 15, 3.0
Workspaces = Callable[[Sequence[Task]], dict[str, int]]


def save_only(names: Iterable[str], offloaded: Iterable[str] = ()) -> Any:
    """The policy of JAX that saves these names, and holds the offloaded ones on the host."""
    policies, names, offloaded = jax.checkpoint_policies, sorted(names), sorted(offloaded)
    if not offloaded:
        return policies.save_only_these_names(*names)
    return policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[name for name in names if name not in set(offloaded)],
        names_which_can_be_offloaded=offloaded,
        offload_src="device",
        offload_dst="pinned_host",
    )


class Traced:
    """A function as a body of equations, and the steps of it under policies.

    Parameters:
        function, shapes, argnums, has_aux: As of `remat.jax.capture`.
        fields: Request fields: the device.
        workspaces: Bytes that tasks take beside their values.
        is_own: Whether names are those in the function; else every value has one.
        transfer: Seconds to offload a byte and to fetch it; infinite for no offloading.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        shapes: Sequence[Any],
        argnums: int | Sequence[int],
        has_aux: bool,
        fields: dict[str, Any],
        workspaces: Workspaces,
        is_own: bool,
        transfer: float,
    ):
        self.function, self.shapes, self.argnums, self.has_aux = function, shapes, argnums, has_aux
        self.fields, self.workspaces, self.is_own, self.transfer = fields, workspaces, is_own, transfer
        closed, self.result = jax.make_jaxpr(function, return_shape=True)(*shapes)
        self.body = body_of(closed)
        self._steps: dict[Any, NamedStep] = {}

    def named(self, naming: Naming) -> Callable[..., Any]:
        """The function, computed with names and policies."""

        @functools.wraps(self.function)
        def computed(*args: Any) -> Any:
            results = naming.computed(self.body, jax.tree.leaves(args))
            return jax.tree.unflatten(jax.tree.structure(self.result), results)

        return computed

    def naming(self, names: frozenset[str], offloaded: frozenset[str] = frozenset()) -> Naming:
        """Names, checkpoints and policies that save only these names."""
        policy = save_only(names, offloaded)
        is_named = (lambda name: False) if self.is_own else names.__contains__
        return Naming(is_named, policy, names.__contains__, {body.path: policy for body in self.body.within()[1:]})

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that save recomputation."""
        return frozenset().union(*(self._names_in(body) for body in self.body.within()))

    @cached_property
    def names_in_scans(self) -> frozenset[str]:
        """Those of them that are in bodies of scans."""
        return frozenset().union(*(self._names_in(body) for body in self.body.within()[1:]))

    @cached_property
    def useless(self) -> list[str]:
        """The user's names that save none."""
        every = (name for body in self.body.within() for name in self._step(body).useless)
        return [name for name in dict.fromkeys(every) if self.is_own and name in self.own and name not in self.names]

    @cached_property
    def own(self) -> frozenset[str]:
        """The names that the function gives."""
        bodies = (body for outer in self.body.within() for body in outer.calls_within())
        equations = (equation for body in bodies for equation in body.equations)
        return frozenset(str(e.source.params["name"]) for e in equations if e.primitive == "name")

    def at_price(self, seconds_per_byte: float) -> frozenset[str]:
        """The names to save if a byte held costs so many seconds; in the bodies of scans first."""
        names: frozenset[str] = frozenset()
        for body in reversed(self.body.within()):
            names |= self._step(body, names).cut(seconds_per_byte, self.transfer, narrow_places(body))
        return names

    def offloads(self, seconds_per_byte: float) -> bool:
        """Whether a saved byte is cheaper on the host than at this price."""
        return self.transfer < seconds_per_byte

    def judged(self, names: frozenset[str], on_host: bool = False) -> Judged:
        """The step that saves these names, on the device or on the host."""
        return self._step(self.body, names).judged(names, names if on_host else (), self.transfer)

    def prices(self) -> list[float]:
        """Seconds of a byte to try, from those that save everything to those that save nothing."""
        around = self._step(self.body).seconds_per_byte
        return [around * FACTOR ** (i - PRICES // 2) for i in range(PRICES)]

    def _names_in(self, body: Body) -> frozenset[str]:
        """The candidates in a body, without those in scans inside of it."""
        found = frozenset(self._step(body).candidates)
        return found & self.own if self.is_own else found - self.own

    def _step(self, body: Body, names: frozenset[str] = frozenset()) -> NamedStep:
        """The step of a body, with a policy that saves `names` in the scans inside of it."""
        kept = {inner.path: names and names & self._names_in(inner) for inner in body.within()[1:]}
        key = (body.path, tuple(kept.items()))
        if key not in self._steps:
            naming = Naming(lambda name: True, scans={path: save_only(each) for path, each in kept.items()})
            forced = {body.name_of(value) for value in crossing(body)}
            if body is self.body:
                program = trace(self.named(naming), self.shapes, self.argnums, self.has_aux)
                made = NamedStep(program, self.fields, forced, self.workspaces)
            else:
                run = functools.partial(naming.computed, body)
                made = NamedStep(trace_pair(run, [value.aval for value in body.inputs]), self.fields, forced)
            made.candidates = {n: b for n, b in made.candidates.items() if (n in self.own) == self.is_own}
            self._steps[key] = made
        return self._steps[key]


def crossing(body: Body) -> set[Value]:
    """Values that a region reads from another one, which are saved whatever a policy says."""
    return {
        value
        for region in regions_of(body)
        for value in {value for equation in region for value in equation.reads}
        - {value for equation in region for value in equation.writes}
    }
