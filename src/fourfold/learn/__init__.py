"""Exercises of the course that check themselves."""

from fourfold.learn.checker import WrongSolution, check

__all__ = ["WrongSolution", "check"]
