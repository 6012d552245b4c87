"""Collect the codes and messages of all problems from the source, and write docs/results/codes.md."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from badpo.data.problems import SEVERITIES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "codes.md"
CODE = r"[EWN]\d{3}"
HEAD = """# Codes

What messages say of each code, and what to do; … stands for names and numbers of your table. `make codes` writes
this page.
"""


def said(node: Any, known: dict[str, str]) -> str:
    """Return the text of an expression, with … for parts that are known only at run time; empty if it is no text."""
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"{[^}]*}", "…", text)
        case ast.JoinedStr(values=parts):
            return "".join(said(part, known) or "…" for part in parts)
        case ast.Name(id=name) | ast.FormattedValue(value=ast.Name(id=name)):
            return known.get(name, "")
        case ast.IfExp(body=part) | ast.BinOp(left=part):
            return said(part, known)
    return ""


def messages(tree: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Return the codes in a file and their messages, from calls, tuples, dicts, and texts that begin with a code."""
    known = constants = dict[str, str]()
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.stmt)]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        rows: list[list[Any]] = []
        match node:
            case ast.FunctionDef():
                known = dict(constants)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                known |= {ast.unparse(n): said(v, known) for n, v in zip(names, values, strict=False)}
            case ast.Assign(targets=[name], value=value):
                known[ast.unparse(name)] = said(value, known)
            case ast.Call(func=called, args=args, keywords=more):
                # the third argument of a problem is its place
                row = [*args[:2], *args[2 + (ast.unparse(called) == "Problem") :]]
                if ast.unparse(called) == "found.ids":
                    row.insert(2, ast.Constant(f"no {said(row[0], known) or '…'}"))
                rows = [row + [each.value for each in more]]
            case ast.Tuple(elts=row):
                rows = [row]
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    left_out = [value, ast.Constant(f"… of … left out: {said(key, known)} (…)")]
                    rows += [[key, *value.elts] if isinstance(value, ast.Tuple) else left_out]
            case ast.Constant() | ast.JoinedStr():
                code, _, text = said(node, known).partition(" ")
                if re.fullmatch(CODE, code) and text:
                    yield code, text.split("\n")
        for row in rows:
            for i, part in enumerate(row):
                codes = ast.unparse(part) if isinstance(part, ast.Constant | ast.IfExp) else ""
                texts = [text for each in row[i + 1 :] if " " in (text := said(each, known))]
                yield from ((code, texts) for code in re.findall(f"'({CODE})'", codes))


def page() -> str:
    """Write the page, with a heading for each code as its anchor, and its messages."""
    found: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for code, texts in messages(ast.parse(text)):
            found[code] += [tuple(texts[:2])] * any(re.match(r"[^,]\W*\w", text) for text in texts[:1])
        for code in re.findall(rf'"({CODE})"', text):
            found[code] += []
    lines = [HEAD]
    for code in sorted(found, key=lambda code: ([*SEVERITIES].index(code[0]), code)):
        lines += [f"## {code}", "", "```text"]
        for what, *remedy in dict.fromkeys(found[code]) or [("see the message",)]:
            lines += [f"{SEVERITIES[code[0]]}: {what}", *(f"    remedy: {text}" for text in remedy)]
        lines += ["```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
