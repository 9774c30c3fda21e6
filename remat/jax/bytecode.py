"""StableHLO modules in MLIR bytecode, as `jax.export` stores them, as text.

Run as a program, it writes the text of the file that the request on standard input names, or a problem, to the file of
its argument: `remat plan` runs it, with limits.
"""

from __future__ import annotations

import resource
from pathlib import Path

from remat.jax.step.private import mlir_text
from remat.steps.child import answer_request
from remat.steps.errors import NotCaptured

MEMORY_BYTES = 16 << 30  # of the process


def text_of(data: bytes) -> str:
    """Text of a module, with locations.

    Parameters:
        data: The bytes of `jax.export.export(...)(...).mlir_module_serialized`, or bytecode of another MLIR tool.

    Raises:
        NotCaptured: The bytes are damaged, or of a later version of StableHLO than that of the installed JAX.

    Example:
        >>> exported = jax.export.export(jax.jit(step))(*arguments)  # doctest: +SKIP
        >>> report = remat.plan(text_of(exported.mlir_module_serialized).encode(), budget="50%")  # doctest: +SKIP
    """
    try:
        return mlir_text(data)
    except Exception as error:  # of the bindings of MLIR, which have no class of their own for it
        reason = str(error).strip().partition("\n")[0]
        raise NotCaptured(f"JAX does not read this bytecode ({reason}); export it again, or send its text") from None


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    answer_request(lambda request: {"text": text_of(Path(request["path"]).read_bytes())}, (NotCaptured,))
