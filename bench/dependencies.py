"""Every package that an installation brings, with its licence: `make dependencies`, `python -m bench.dependencies`.

Starts at what pyproject.toml declares and follows what each package requires, as far as it is installed here. A
licence that is not known to go together with Apache-2.0 in a program that only imports the package makes the command
fail. Where `pip-audit` is installed and the index of known weaknesses can be reached, it is asked too; else the page
says so.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement

OURS = "ba-dpo"
PAGE = Path("docs/results/dependencies.md")
AUDIT_SECONDS = 300
# Parts of licence names that may be imported from an Apache-2.0 program; anything else is looked at by a person first.
PERMITTED = re.compile(
    r"\b(MIT|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla Public|Zlib|HPND|Unlicense|CC0|CNRI|"
    r"LLVM|Boost)",
    re.IGNORECASE,
)
REFUSED = re.compile(r"\b(A?GPL|Affero|LGPL|GNU|SSPL|proprietary|commercial)", re.IGNORECASE)
# Packages whose own metadata is longer than a name, or names a licence among others; looked up by hand.
KNOWN = {
    "scipy": "BSD-3-Clause; its wheels bring libgfortran under GPL-3.0-or-later WITH GCC-exception-3.1",
}
HEAD = """\
# Dependencies and their licences

Written by `make dependencies`, which is `python -m bench.dependencies`: what `pip install "ba-dpo[train]"` brings,
from the packages' own metadata. Versions are those of constraints.txt."""


@dataclass(frozen=True)
class Package:
    """An installed package: its name and version, its licence, and who asked for it."""

    name: str
    version: str
    licence: str
    needed_by: str

    @property
    def is_permitted(self) -> bool:
        """Whether the licence is one of those that are known to go together with ours."""
        if self.name in KNOWN:
            return True
        return PERMITTED.search(self.licence) is not None and REFUSED.search(self.licence) is None


def licence_of(found: metadata.Distribution) -> str:
    """The licence in one line: the expression, else the classifiers, else the first line of the field."""
    name = normal(found.metadata["Name"])
    if name in KNOWN:
        return KNOWN[name]
    said = found.metadata.get("License-Expression")
    if said:
        return said
    classifiers = found.metadata.get_all("Classifier") or []
    named = [c.rpartition(" :: ")[2] for c in classifiers if c.startswith("License :: OSI Approved ::")]
    first_line = (found.metadata.get("License") or "").strip().partition("\n")[0][:60]
    return "; ".join(named) or first_line or "not said"


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(found: metadata.Distribution, extras: Iterable[str]) -> list[Requirement]:
    """What a package requires here, with these of its extras."""
    parsed = [Requirement(text) for text in found.requires or []]
    environments = [{**default_environment(), "extra": extra} for extra in (*extras, "")]
    return [r for r in parsed if r.marker is None or any(r.marker.evaluate(e) for e in environments)]


def closure(extras: Iterable[str]) -> list[Package]:
    """Every installed package that ours needs, directly or not, by name."""
    found: dict[str, Package] = {}
    waiting = [(r, OURS) for r in requirements(metadata.distribution(OURS), extras)]
    while waiting:
        requirement, needed_by = waiting.pop(0)
        name = normal(requirement.name)
        if name in found:
            continue
        try:
            installed = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            continue
        found[name] = Package(name, installed.version, licence_of(installed), needed_by)
        waiting += [(r, name) for r in requirements(installed, requirement.extras)]
    return [found[name] for name in sorted(found)]


def known_weaknesses(packages: list[Package]) -> str:
    """What pip-audit says of these versions, or why it was not asked."""
    listed = "".join(f"{package.name}=={package.version.partition('+')[0]}\n" for package in packages)
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    try:
        asked = subprocess.run(
            [*command, "-r", "/dev/stdin"],
            input=listed,
            capture_output=True,
            text=True,
            timeout=AUDIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"`pip-audit` gave no answer within {AUDIT_SECONDS} seconds, so known weaknesses were not looked up."
    said = (asked.stdout or asked.stderr).strip()
    if "No module named pip_audit" in said:
        return "`pip-audit` is not installed here, so known weaknesses were not looked up: `pip install pip-audit`."
    return f"`pip-audit` said:\n\n```text\n{said}\n```"


def page(packages: list[Package], weaknesses: str) -> str:
    """The table as a page."""
    rows = [f"| {p.name} | {p.version} | {p.licence.replace('|', '/')} | {p.needed_by} |" for p in packages]
    table = "\n".join(["| package | version | licence | needed by |", "| --- | --- | --- | --- |", *rows])
    return "\n\n".join([HEAD, f"{len(packages)} packages.", table, "## Known weaknesses", weaknesses]) + "\n"


def main() -> None:
    """Write the page; a licence that is not known to be permitted makes the command fail."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE", help="the page to write")
    parser.add_argument(
        "--no-audit", action="store_true", help="do not ask pip-audit, which uses the network"
    )
    options = parser.parse_args()
    packages = closure(["train"])
    said = "Not asked for." if options.no_audit else known_weaknesses(packages)
    options.out.write_text(page(packages, said))
    print(f"{options.out}: {len(packages)} packages")
    if wrong := [f"{p.name}: {p.licence}" for p in packages if not p.is_permitted]:
        raise SystemExit("licences to look at first:\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
