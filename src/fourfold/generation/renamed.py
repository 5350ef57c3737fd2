"""`renamed`: decorator that accepts the old names of keyword arguments until a later version."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


def renamed(**names: str) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """Return a decorator that passes the argument `old` on as `new`, for each `old="new"` given.

    A call with an old name, such as `beam` for `@renamed(beam="num_beams")`, warns with a
    DeprecationWarning.
    """

    def decorate(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> ResultT:
            for old in names.keys() & kwargs.keys():
                new = names[old]
                message = f"{old} is now called {new}; the old name is accepted until fourfold 0.4"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                if new in kwargs:
                    raise TypeError(f"{old} and {new} are the same argument; give only {new}")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate
