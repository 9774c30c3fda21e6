"""Gradient rules, one short function each, registered by decorator.

    @gradient("Mul")
    def mul(emit, node, dz):
        x, y = node.inputs
        return emit.sum_to(emit.mul(dz, y), x), emit.sum_to(emit.mul(dz, x), y)

A rule gets the incoming gradient of each output (None where there is none, unless `zeros=True`) and returns one
gradient, `IndexedSlices`, or None per input; `node.needs` lists which are needed. `node.output(position)` adds an
optional output to the forward node. Rules of ops are in `rules/`, rules of nodes with bodies in `control_flow/`.
May import what graph.autodiff may. Start at `registry.py`.
"""
