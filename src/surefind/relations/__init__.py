"""Relations: which examples belong together, which do not, and which are neither.

A relation over ``n`` examples calls each pair same, different or neither. It comes from class labels, from
positions with two radii (place recognition: same within one, different beyond the other, neither between),
or from a list of judged pairs. Self-pairs are neither.

Beside single blocks of pairs, a relation can add up vectors over an example's partners without ever
storing n × n: over the same ones, and over the different ones inside a margin, |u_i - u_j|² <= m.

Axes: ``n`` examples, ``z`` embedding, ``v`` summed vectors, ``k`` classes, ``r`` rows and ``c`` columns of
a block, ``m`` listed pairs.
"""

from surefind.relations.classes import Classes, class_sums
from surefind.relations.labels import Labels, as_relation
from surefind.relations.pair_list import PairList
from surefind.relations.positions import Positions
from surefind.relations.relation import Relation
from surefind.relations.scan import blocks, inside_margin

__all__ = [
    "Classes",
    "Labels",
    "PairList",
    "Positions",
    "Relation",
    "as_relation",
    "blocks",
    "class_sums",
    "inside_margin",
]
