"""Gradient rules, one short function each, registered by decorator.

    @gradient("Mul")
    def mul(emit, node, dz):
        x, y = node.inputs
        return emit.sum_to(emit.mul(dz, y), x), emit.sum_to(emit.mul(dz, x), y)

A rule gets the incoming gradient of each output (None where there is none, unless `zeros=True`)
and returns one gradient, `Rows` of one, or None, per input; `node.needs` says which are wanted. A rule that asks
for `node.output(position)` makes an optional output of the forward node wanted. `rules` holds the families,
`control_flow` the rules of nodes with bodies. May import ir, builder and ops. Start at `registry.py`.
"""
