"""Every code of a problem, with the words that the source has for it; writes docs/results/codes.md."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from badpo.data.problems import SEVERITIES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "codes.md"
_CODE = re.compile(r"[EWN]\d{3}")
_HEAD = """# Codes

What messages say of each code, and what to do; … stands for names and numbers of your table. `make codes` writes
this page.
"""
# Where the remedy stands, counted from the code; what is wrong is the first text after the code.
_REMEDIES = {"Problem": 3, "rows": 4, "note": 2, "refusal": 2}


Known = dict[str, list[tuple[int, str]]]  # what a name stands for, from which line on
Found = defaultdict[str, list[tuple[str, str]]]  # what is wrong and what to do, by code


def known_in(tree: ast.AST) -> Known:
    """The texts that names are given."""
    known = defaultdict(list)
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            are_several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            names, values = (target.elts, node.value.elts) if are_several else ([target], [node.value])
            for name, value in zip(names, values, strict=False):
                if isinstance(name, ast.Name):
                    known[name.id].append((node.lineno, said(value, known)))
    return {name: sorted(told) for name, told in known.items()}


def said(node: Any, known: Known) -> str:
    """The text that an expression gives, with … for what is known only when it runs; "" where it is no text."""
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"{[^}]*}", "…", text)
        case ast.JoinedStr(values=parts):
            return "".join(said(part, known) or "…" for part in parts)
        case ast.FormattedValue(value=ast.Name() as name):
            return said(name, known)
        case ast.Name(id=name, lineno=line):
            return next((text for at, text in reversed(known.get(name, [])) if at <= line), "")
        case ast.IfExp(body=part) | ast.BinOp(left=part):
            return said(part, known)
    return ""


def add_told(tree: ast.AST, known: Known, found: Found) -> None:
    """Add what stands beside each code: in a call, a tuple, a table of codes, or a text that begins with one."""
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        name = ""
        match node:
            case ast.Call(
                args=[*parts], func=ast.Name(id=name) | ast.Attribute(attr=name), keywords=more
            ):
                told = {each.arg: said(each.value, known) for each in more}
                if _CODE.fullmatch(told.get("code", "")):
                    found[told["code"]].append((told.get("what", ""), ""))
            case ast.Tuple(elts=[*parts]):
                pass
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(value, ast.Tuple) and _CODE.fullmatch(said(key, known)):
                        found[said(key, known)].append(tuple(said(part, known) for part in value.elts))
                    elif _CODE.fullmatch(said(value, {})):
                        found[said(value, {})].append((f"… of … left out: {said(key, {})} (…)", ""))
            case ast.Constant() | ast.JoinedStr():
                code, _, text = said(node, known).partition(" ")
                if _CODE.fullmatch(code):
                    found[code] += [(*text.partition("\n")[::2],)] * (" " in text)
        coded = [
            (i, said(each, {}))
            for i, part in enumerate(parts)
            for each in ([part.body, part.orelse] if isinstance(part, ast.IfExp) else [part])
        ]
        for i, code in coded:
            if not _CODE.fullmatch(code) or (not name and found[code]):
                continue
            after = [said(each, known) for each in parts[i + 1 :]]
            if name == "ids":
                found[code].append((f"no {said(parts[i - 1], known) or '…'}", [*after, ""][0]))
            else:
                what = [*(text for text in after if " " in text), "", ""]
                at = _REMEDIES.get(name)
                remedy = what[1] if at is None else [*after, *[""] * at][at - 1]
                found[code].append((what[0], remedy))


def page() -> str:
    """The page: a heading for each code, which is its anchor, and what messages say."""
    found: Found = defaultdict(list)
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        top = ast.Module([node for node in tree.body if isinstance(node, ast.Assign)], [])
        constants = {name: [(0, told[-1][1])] for name, told in known_in(top).items()}
        add_told(top, {}, found)
        for part in ast.walk(tree):
            if isinstance(part, ast.FunctionDef):
                add_told(part, constants | known_in(part), found)
        for code in re.findall(rf'"({_CODE.pattern})"', text):
            found[code] += []
    lines = [_HEAD]
    for code in sorted(found, key=lambda code: ([*SEVERITIES].index(code[0]), code)):
        told = dict.fromkeys(each for each in found[code] if each[0].strip("…:. ")) or [
            ("see the message", "")
        ]
        lines += [f"## {code}", "", "```text"]
        for what, remedy in told:
            lines += [f"{SEVERITIES[code[0]]}: {what}"]
            lines += [f"    remedy: {remedy}"] * bool(remedy.strip("… "))
        lines += ["```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
