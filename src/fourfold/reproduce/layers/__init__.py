"""Complexity, costs and timing of the layers of Table 1 of Vaswani et al. (2017)."""
