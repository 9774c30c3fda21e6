"""Bundle of a script with its imports, so that a page loads one file instead of a chain of ten.

    import { size } from "./format.js";   ──▶   const $format = (() => { ...; return { size, share }; })();
                                                 const { size } = $format;

Only for our own scripts: an import is a line of its own and names a file of the same folder; an export begins a line.
The entry keeps its exports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

IMPORT = re.compile(r'^import (?:\{ (?P<names>.+?) \} from )?"\./(?P<module>\w+)\.js";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (?P<name>\w+))", re.MULTILINE)


def bundle(entry: str, scripts: Mapping[str, str]) -> str:
    """Imported scripts in dependency order, each once, then `entry`. Raises KeyError for an unknown import."""
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        for match in IMPORT.finditer(scripts[name]):
            visit(match["module"])
        order[name] = None

    visit(entry)
    modules = [_as_module(name, scripts[name]) for name in order if name != entry]
    return "\n".join([*modules, IMPORT.sub(_destructured, scripts[entry])])


def _as_module(name: str, script: str) -> str:
    """The script in a function that returns its exports."""
    exports = ", ".join(match["name"] for match in EXPORT.finditer(script))
    body = EXPORT.sub("", IMPORT.sub(_destructured, script))
    return f"const ${name} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();"


def _destructured(match: re.Match[str]) -> str:
    """An import as a destructuring assignment."""
    names = match["names"]
    return f"const {{ {names.replace(' as ', ': ')} }} = ${match['module']};" if names else ""
