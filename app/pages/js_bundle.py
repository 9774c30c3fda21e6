"""A script with what it imports inside, so that a page asks for one file and not for ten, one after the other.

    import { size } from "./format.js";   ──▶   const $format = (() => { ...; return { size, share }; })();
                                                 const { size } = $format;

Ours are written so that lines tell: an import is a line of its own and names a file beside it, an export begins one.
Whoever imports a script gets its exports as ever.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

IMPORT = re.compile(r'^import (?:\{ (?P<names>.+?) \} from )?"\./(?P<module>\w+)\.js";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (?P<name>\w+))", re.MULTILINE)


def bundle(entry: str, scripts: Mapping[str, str]) -> str:
    """The script `entry` after those that it imports, each once. Raises KeyError for one that is not in `scripts`."""
    order: dict[str, None] = {}

    def follow(name: str) -> None:
        for found in IMPORT.finditer(scripts[name]):
            follow(found["module"])
        order[name] = None

    follow(entry)
    inside = [_closed(name, scripts[name]) for name in order if name != entry]
    return "\n".join([*inside, IMPORT.sub(_taken, scripts[entry])])


def _closed(name: str, script: str) -> str:
    """The script as a function of its own, whose result is what it exports."""
    exports = ", ".join(found["name"] for found in EXPORT.finditer(script))
    body = EXPORT.sub("", IMPORT.sub(_taken, script))
    return f"const ${name} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();"


def _taken(found: re.Match[str]) -> str:
    names = found["names"]
    return f"const {{ {names.replace(' as ', ': ')} }} = ${found['module']};" if names else ""
