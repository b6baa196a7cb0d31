"""Graphs: work that is recorded once and replayed as a whole, with little cost per operator.

    g = graphs.Graph()
    with graphs.graph(g):
        y = model(x)
        g.bind("x", x)
    g.replay()             # y is computed anew from what x holds
    g.replay(x=other)      # ... or from another tensor, without a copy

Names follow `torch.cuda`. The module serves every device type of this package, and is also
`torch.outrigger.graphs`. `torch.accelerator.Graph` and `torch.mtia.MTIAGraph` are the same graphs with
torch's own, smaller interface. This module must never hold code.
"""

from ._callables import make_graphed_callables
from ._graph import Graph, graph, graph_pool_handle, is_current_stream_capturing, label
from ._variants import Variants, variants

__all__ = [
    "Graph",
    "Variants",
    "graph",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "label",
    "make_graphed_callables",
    "variants",
]
