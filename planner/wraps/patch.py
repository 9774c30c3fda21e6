"""A plan of whole modules as Python code that needs PyTorch only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PLAIN = '''
def wrap(model):
    """Checkpoint the modules of the plan; parameters, buffers and names stay as they are."""
    for name in MODULES:
        module = model.get_submodule(name)
        if "forward" in vars(module):
            raise ValueError(f"{name} is wrapped already")
        module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
    return model
'''
WITH_CONTEXTS = '''
def wrap(model):
    """Checkpoint the modules of the plan; parameters, buffers and names stay as they are."""
    for name, ops in MODULES.items():
        module = model.get_submodule(name)
        if "forward" in vars(module):
            raise ValueError(f"{name} is wrapped already")
        context_fn = functools.partial(contexts, module, ops)
        module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False, context_fn=context_fn)
    return model
'''
CONTEXTS = '''
def contexts(module, ops):
    """What the first and the second forward pass of a module run in."""
    if not ops:
        return contextlib.nullcontext(), {second}
    first, second = create_selective_checkpoint_contexts(ops)
    return first, {both}

'''
STATISTICS = '''
@contextlib.contextmanager
def with_copied_buffers(module, context):
    """The second forward pass of a module: batch norm updates copies of its running statistics."""
    kept = [(part, dict(part._buffers)) for part in module.modules()]
    for part, buffers in kept:
        part._buffers.update({name: None if value is None else value.clone() for name, value in buffers.items()})
    try:
        with context:
            yield
    finally:
        for part, buffers in kept:
            part._buffers.update(buffers)

'''


def patch(modules: Mapping[str, Sequence[str]], has_statistics: bool, comments: Sequence[str]) -> str:
    """A module with the function `wrap(model)`.

    Parameters:
        modules: Path of each module to wrap -> ops whose results it keeps, such as `aten::mm.default`.
        has_statistics: Whether one of them has batch norm in training mode.
        comments: Lines to begin with.
    """
    keeps = any(modules.values())
    lines = [f"# {' '.join(comment.split())}" for comment in comments]
    lines += ["", *(["import contextlib"] if keeps or has_statistics else []), "import functools", ""]
    lines += ["import torch"] if keeps else []
    selective = ", create_selective_checkpoint_contexts" if keeps or has_statistics else ""
    lines += [f"from torch.utils.checkpoint import checkpoint{selective}", ""]
    if not keeps and not has_statistics:
        lines += ["MODULES = [", *(f"    {path!r}," for path in modules), "]", ""]
        return "\n".join(lines) + PLAIN
    lines += ["MODULES = {  # module -> ops whose results it keeps; it recomputes everything else"]
    lines += [f"    {path!r}: [{', '.join(map(_name, ops))}]," for path, ops in modules.items()]
    lines += ["}", ""]
    second, both = "contextlib.nullcontext()", "second"
    if has_statistics:
        second, both = (f"with_copied_buffers(module, {context})" for context in (second, both))
    contexts = CONTEXTS.format(second=second, both=both)
    return "\n".join(lines) + (STATISTICS if has_statistics else "") + contexts + WITH_CONTEXTS


def _name(op: str) -> str:
    """`torch.ops.aten.mm.default` for `aten::mm.default`."""
    return f"torch.ops.{op.replace('::', '.')}"
