"""Cases of the original systems: how each category is run, and what each expectation is checked by.

case ──▶ Area.run ──▶ run        expected.FIELD  ──▶ Area.fields[FIELD](run, value)
                                 every sentence  ──▶ the one check that stands for it; an unknown sentence fails
                                 expected.error  ──▶ Area.force(run) is refused with that code and those names
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.errors import AppError
from graph.errors import GraphError
from planner.errors import PlannerError

Case = dict[str, Any]
Check = Callable[[Any, Any], None]
SentenceCheck = Callable[[Any, "re.Match[str]"], None]

OURS = Path(__file__).parent / "cases.json"
FOREIGN = os.environ.get("REMAT_SEED_CASES")  # another file of cases, with its own words for kinds of errors
CASES: list[Case] = json.loads(Path(FOREIGN or OURS).read_text())

#: Fields whose content is sentences, in an expectation or in the error it expects.
SENTENCES = frozenset(
    {
        "properties",
        "match",
        "asserted_upstream",
        "upstream_behaviour",
        "upstream_defect",
        "or",
        "notes",
        "should_report",
    }
)
#: Classes of what the original raises; our codes stand in `ERROR_KINDS`.
EXCEPTIONS = frozenset({"upstream_exception", "upstream_exceptions"})

#: Text of `error.message_contains`, in the original's words -> what our message says.
MESSAGES: dict[str, str] = {
    "version": r"needs '\w+' at version \d+, it is now at version \d+",
    "schema": r"as the schema of the op says",
    "Only one input blob": r"expected one sequence",
}

#: Word of `error.kind` -> our code.
ERROR_KINDS: dict[str, str] = {
    "bad_request": "bad_request",
    "bad_signature": "bad_signature",
    "binding_length_mismatch": "length_mismatch",
    "bindings_given_twice": "bindings_twice",
    "blob_written_on_two_devices": "written_on_two_devices",
    "branch_outputs_mismatch": "branch_outputs",
    "condition_not_written": "condition_not_written",
    "device_conflict": "device_conflict",
    "duplicate_inner_name": "duplicate_inner_name",
    "duplicate_outer_name": "duplicate_outer_name",
    "duplicate_output": "output_twice",
    "duplicate_outputs": "output_twice",
    "given_blob_would_be_recomputed": "given_recomputed",
    "gradient_count_mismatch": "gradient_count",
    "gradient_reads_unknown_blob": "foreign_gradient_read",
    "gradient_rule_count_mismatch": "gradient_rule_count",
    "input_has_other_readers": "several_readers",
    "length_mismatch": "length_mismatch",
    "loop_body_not_single_scope": "loop_body",
    "loop_scope_reused": "scope_reused",
    "missing_bindings": "missing_bindings",
    "missing_condition": "missing_condition",
    "missing_condition_input": "missing_condition",
    "missing_field": "missing_field",
    "missing_output_gradient": "missing_output_gradient",
    "missing_scope": "missing_scope",
    "missing_subgraph": "missing_body",
    "mixed_sparse_dense_gradients": "mixed_gradients",
    "multiple_consumers": "several_readers",
    "name_outside_scope": "name_outside_scope",
    "name_taken": "name_taken",
    "no_gradient_outputs": "no_gradient_outputs",
    "no_output_gradient": "no_output_gradient",
    "no_producer": "no_producer",
    "non_differentiable_op": "no_gradient",
    "not_sole_reader": "several_readers",
    "null_status": "null_status",
    "orphan_barrier": "orphan_barrier",
    "outer_index_out_of_range": "outer_index",
    "outer_name_bound_twice": "outer_name_bound_twice",
    "output_twice": "output_twice",
    "scope_mismatch": "scope_mismatch",
    "segment_index_out_of_range": "unknown_segment",
    "segment_not_consecutive": "scattered_segment",
    "several_consumers": "several_readers",
    "several_readers": "several_readers",
    "shape_mismatch": "shape_mismatch",
    "status_conflict": "status_conflict",
    "status_unknown": "unknown_status",
    "too_deep": "too_deep",
    "unbound_outer_name": "unbound_outer_name",
    "undeclared_recompute_output": "recompute_undeclared",
    "undefined_blob": "undefined_value",
    "undefined_name": "undefined_value",
    "undefined_target": "undefined_value",
    "undetermined_status": "unknown_status",
    "unknown_blob": "undefined_value",
    "unknown_checkpoint": "unknown_checkpoint",
    "unknown_loss": "unknown_loss",
    "unknown_recompute_blob": "recompute_unknown",
    "unknown_status": "unknown_status",
    "unknown_target": "undefined_value",
    "unreachable": "unreachable",
    "unsupported_sequence_count": "sequence_count",
    "version_conflict": "version_conflict",
}

#: What a corrupted expectation must raise.
NOTICED = (AssertionError, LookupError, ValueError, TypeError, AttributeError)


@dataclass
class Area:
    """One category of cases. A run is made from the case and does its work when asked."""

    run: Callable[[Case], Any]
    fields: Mapping[str, Check]
    force: Callable[[Any], object] = lambda run: run  # does all the case asks for; raises where it is refused
    variants: Callable[[Case], Sequence[Any]] = lambda case: ()  # runs of `given.variants`, in their order
    sentences: list[tuple[str, SentenceCheck]] = field(default_factory=list)

    def sentence(self, pattern: str) -> Callable[[SentenceCheck], SentenceCheck]:
        """The decorated check stands for every sentence that matches `pattern` as a whole."""

        def register(check: SentenceCheck) -> SentenceCheck:
            self.sentences.append((pattern, check))
            return check

        return register

    def check(self, case: Case, expected: Mapping[str, Any] | None = None) -> None:
        """Run the case and hold it against `expected`, its own by default."""
        expected = case["expected"] if expected is None else expected
        run = self.run(case)
        for name, value in expected.items():
            if name == "error":
                check_refused(lambda: self.force(run), {k: v for k, v in value.items() if k not in SENTENCES})
            elif name == "error_for_each_variant":
                self._check_variants(case, value)
            elif name == "variants":
                self._check_either(case, value)
            elif name not in SENTENCES | EXCEPTIONS:
                assert name in self.fields, f"no check stands for the field {name!r}"
                self.fields[name](run, value)
        for text in sentences_of(expected):
            self.check_sentence(run, text)
        for text in notes_of(case) if expected is case["expected"] else ():
            self.check_sentence(run, text)

    def check_sentence(self, run: Any, text: str) -> None:
        """Run the check that stands for `text`."""
        match, check = self.known(text)
        check(run, match)

    def known(self, text: str) -> tuple[re.Match[str], SentenceCheck]:
        """The match of `text` with the first pattern that fits it as a whole, and the check of that pattern."""
        for pattern, check in self.sentences:
            match = re.fullmatch(pattern, text)
            if match is not None:
                return match, check
        raise AssertionError(f"no check stands for the sentence {text!r}")

    def _check_variants(self, case: Case, kinds: Sequence[str]) -> None:
        runs = self.variants(case)
        assert len(runs) == len(kinds)
        for run, kind in zip(runs, kinds, strict=True):
            match = re.fullmatch(r"(\w+)(?: \(\w+\))?", kind)  # the original's exception stands in parentheses
            assert match is not None, kind
            check_refused(lambda run=run: self.force(run), {"kind": match[1]})

    def _check_either(self, case: Case, alternatives: Mapping[str, Mapping[str, Any]]) -> None:
        """The originals changed their rules over time: one of the alternatives holds as a whole."""
        faults = []
        for expected in alternatives.values():
            try:
                self.check(case, expected)
                return
            except NOTICED as fault:
                faults.append(fault)
        raise AssertionError(f"no alternative holds: {faults}")


def notes_of(case: Case) -> list[str]:
    """Sentences of a case beside its expectation."""
    return [text for text in (case.get("notes"), case["given"].get("note")) if text]


def sentences_of(expected: Mapping[str, Any]) -> list[str]:
    """Sentences of an expectation and of the error it expects; alternatives are expectations of their own."""
    found = []
    for name, value in expected.items():
        if name in SENTENCES:
            found += [value] if isinstance(value, str) else value
        elif name == "error":
            found += sentences_of(value)
    return found


def refusal(ask: Callable[[], object]) -> Exception:
    """The error with which `ask` is refused."""
    try:
        ask()
    except (GraphError, PlannerError, AppError) as error:
        return error
    raise AssertionError("not refused")


def check_refused(ask: Callable[[], object], expected: Mapping[str, Any]) -> None:
    """`ask` raises a finding with our code for that kind, and the message says and names what it should."""
    unknown = expected.keys() - {"kind", "message_contains", "message_should_name", *EXCEPTIONS}
    assert not unknown, f"no check stands for {sorted(unknown)} of an error"
    refused = refusal(ask)
    if expected["kind"] in ERROR_KINDS or FOREIGN is None:
        assert expected["kind"] in ERROR_KINDS, f"no code stands for the kind {expected['kind']!r}"
        assert ERROR_KINDS[expected["kind"]] in codes(refused), f"{codes(refused)}: {refused}"
    else:  # the word is the foreign file's own; what counts is that it is refused, and whom the message names
        warnings.warn(f"no code stands for the kind {expected['kind']!r}: {codes(refused)}", stacklevel=2)
    for text in expected.get("message_contains", []):
        assert text in MESSAGES, f"no text of ours stands for the message {text!r}"
        assert re.search(MESSAGES[text], str(refused)), f"{text!r} is not said in: {refused}"
    for name in expected.get("message_should_name", []):
        assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(refused)), f"{name!r} is not named in: {refused}"


def check_tolerance(run: Any, tolerance: float) -> None:
    """It compares numbers; the checks of values read it from the case."""
    assert 0 < tolerance < 0.1


def codes(refused: Exception) -> list[str]:
    found = [finding.code for finding in getattr(refused, "findings", ())]
    own = getattr(refused, "code", "")
    return found + [own] * bool(own)


def corrupted_sentences(area: Area, text: str) -> Iterator[list[str]]:
    """For each name and number that the check reads in `text`: the sentences in which it is another one."""
    match, _ = area.known(text)
    for group in range(1, match.re.groups + 1):
        start, end = match.span(group)
        word = text[start:end]
        if word:
            number = re.fullmatch(r"\d+(\.\d+)?", word)
            others = ["0", f"{float(word) * 1000 + 1:g}"] if number else [f"{word}x"]
            yield [text[:start] + other + text[end:] for other in others if other != word]


def check_and_corrupt(area: Area, case: dict[str, Any]) -> None:
    """The case comes out as expected, and not as anything else."""
    area.check(case)
    for wrong in corruptions(case["expected"]):
        with pytest.raises(NOTICED):
            area.check(case, wrong)


def corruptions(expected: Any) -> Iterator[Any]:
    """`expected` with one number or word changed, once for each; remarks and sentences apart."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            if key == "variants":  # alone, so that no other alternative holds instead
                for name, alternative in value.items():
                    for wrong in corruptions(alternative):
                        yield {**expected, key: {name: wrong}}
            elif key == "kind" and FOREIGN is not None:
                continue  # any word may stand there
            elif key not in SENTENCES | EXCEPTIONS:
                for wrong in corruptions(value):
                    yield {**expected, key: wrong}
    elif isinstance(expected, list):
        if not expected:
            yield ["x"]
        for i, value in enumerate(expected):
            for wrong in corruptions(value):
                yield [*expected[:i], wrong, *expected[i + 1 :]]
    elif isinstance(expected, bool):
        yield not expected
    elif isinstance(expected, int | float):
        yield expected + 1
    else:
        yield f"{expected or ''}x"
