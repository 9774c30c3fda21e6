"""Scripts are served as bundles with their imports."""

from __future__ import annotations

import re

import pytest

from app.pages.shell.assets import STATIC, asset_files
from app.pages.shell.js_bundle import bundle

SCRIPTS = {
    "entry": 'import { twice, three as third } from "./sums.js";\nimport "./hello.js";\nexport const six = 2 * third;',
    "sums": 'import { one } from "./ones.js";\nexport function twice(x) { return 2*x; }\nexport const three = 3 * one;',
    "hello": 'import { one } from "./ones.js";\nif (one !== 1) throw new Error("one");',
    "ones": "export const one = 1;",
}


def test_imported_scripts_come_first_and_once() -> None:
    made = bundle("entry", SCRIPTS)
    places = [made.index(f"const ${name} = ") for name in ("ones", "sums", "hello")]
    assert places == sorted(places) and made.count("const $ones = ") == 1
    assert "const { twice, three: third } = $sums;" in made and "return { twice, three };" in made
    assert re.findall(r"^export", made, re.MULTILINE) == ["export"]  # those of the entry are still its own
    assert not re.search(r"^import", made, re.MULTILINE)


def test_an_unknown_import_is_an_error() -> None:
    with pytest.raises(KeyError):
        bundle("a", {"a": 'import { b } from "./b.js";'})


@pytest.mark.parametrize("path", sorted(path.name for path in (STATIC / "js").glob("*.js")))
def test_no_served_script_has_static_imports(path: str) -> None:
    served = asset_files()[f"js/{path}"].decode()
    assert not re.search(r"^\s*(import|export)\b.*\bfrom ", served, re.MULTILINE)
    assert not re.search(r'^import "', served, re.MULTILINE)
    own = (STATIC / "js" / path).read_text()
    assert len(re.findall(r"^export ", own, re.MULTILINE)) == len(re.findall(r"^export ", served, re.MULTILINE))
