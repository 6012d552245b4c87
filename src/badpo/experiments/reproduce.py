"""``badpo reproduce``: the runs of a suite, its tables, and whether the paper's patterns are in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from badpo.data.problems import ConfigError, did_you_mean
from badpo.experiments.name_tables import name_tables
from badpo.experiments.pattern_checks import Pattern
from badpo.experiments.patterns import found_patterns
from badpo.experiments.run import Progress
from badpo.experiments.suite_formats import FORMATS, to_json
from badpo.experiments.suite_materials import Material, gate_lines, own_file
from badpo.experiments.suite_needs import free_theta_lines, read_stages, require_needs
from badpo.experiments.suite_notes import with_notes
from badpo.experiments.suite_parts import Corpus, Suite
from badpo.experiments.suite_runs import SuitePlan, execute, plan, planned_runs, refused_runs
from badpo.experiments.suite_settings import SCALES, Scale
from badpo.experiments.suite_tables import Found, Table, found_runs, has_reference, tables
from badpo.experiments.suite_votes import about_votes, votes_table
from badpo.experiments.suites import SUITES
from badpo.readouts.generation_vllm import GENERATORS, require_vllm


@dataclass(frozen=True)
class SuiteResult:
    """A suite's tables and patterns.

    Attributes
    ----------
    suite : Suite
    tables : tuple of Table
    patterns : tuple of Pattern
    left_out : tuple of str
        Panels that the scale has no model for.
    about : tuple of str
        Of a user's own votes: how many they are, and what of their texts the scale trains on.
    stand_in : str
        What stands in the place of the models that tables name; empty where those themselves were trained.
    """

    suite: Suite
    tables: tuple[Table, ...]
    patterns: tuple[Pattern, ...]
    left_out: tuple[str, ...]
    about: tuple[str, ...] = ()
    stand_in: str = ""

    def text(self, form: str) -> str:
        """Tables in one of `FORMATS`; patterns and what is said of the votes too, except in CSV."""
        parts = [FORMATS[form](table) for table in self.tables]
        if form == "csv":
            # one header for all panels
            return (
                "\n".join([parts[0], *("\n".join(part.split("\n")[1:]) for part in parts[1:])])
                if parts
                else ""
            )
        mark = {"text": "", "markdown": "- ", "latex": "% "}[form]
        lines = [mark + line for found in self.patterns for line in pattern_lines(found)]
        lines += [f"{mark}not at this scale: {title}" for title in self.left_out]
        lines += [mark + line for line in (*self.about, *([self.stand_in] if self.stand_in else []))]
        return "\n\n".join([*parts, "\n".join(lines)]).rstrip()

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "suite": self.suite.name,
            "tables": [to_json(table) for table in self.tables],
            "patterns": [
                {"sentence": p.sentence, "verdict": p.verdict, "holds": p.holds, "figures": list(p.figures)}
                for p in self.patterns
            ],
            "left_out": list(self.left_out),
            "about": list(self.about),
            "stand_in": self.stand_in,
        }


def pattern_lines(found: Pattern) -> list[str]:
    """A pattern in one line, with its figures."""
    return [f"{found.verdict}: {found.sentence}. {'; '.join(found.figures)}"]


def chosen_suites(name: str) -> list[Suite]:
    """The suites of a name, or all of them.

    Raises
    ------
    ConfigError
        No such suite.

    Examples
    --------
    >>> [suite.name for suite in chosen_suites("lora")], len(chosen_suites("all"))
    (['lora'], 12)
    """
    if name != "all" and name not in SUITES:
        raise ConfigError(
            f'there is no suite "{name}".{did_you_mean(name, list(SUITES))} Suites: {", ".join(SUITES)}'
        )
    return list(SUITES.values()) if name == "all" else [SUITES[name]]


def require_usable(data: Path, suites: Sequence[Suite], scale: Scale) -> None:
    """Refuse a user's own file that is not there, or that cannot stand in the place of a corpus.

    Raises
    ------
    ConfigError
        With the reason, and the suites that take a file at this scale.
    """
    takers = [
        suite.name
        for suite in SUITES.values()
        if not scale.own_pairs or any(corpus.kind == "style" for corpus in suite.corpora())
    ]
    if len(suites) > 1:
        raise ConfigError(
            f"--data stands in the place of the corpus of one suite; name that suite: {', '.join(takers)}"
        )
    if suites[0].name not in takers:
        raise ConfigError(
            f"--data: {suites[0].name} is on names, and at scale {scale.name} a file cannot stand in the place of its "
            f"pairs: {scale.own_pairs}. Take --scale paper, or a suite that takes votes: {', '.join(takers)}"
        )
    if not data.exists():
        raise ConfigError(f"--data: {data} is not there")


def scale_named(name: str) -> Scale:
    """A scale by its name.

    Raises
    ------
    ConfigError
        No such scale.
    """
    if name not in SCALES:
        raise ConfigError(
            f'there is no scale "{name}".{did_you_mean(name, list(SCALES))} Scales: {", ".join(SCALES)}'
        )
    return SCALES[name]


def drawing_with(scale: Scale, generator: str) -> Scale:
    """A scale whose measured answers are drawn by transformers or by vLLM.

    Raises
    ------
    ConfigError
        Neither is named.
    """
    if generator not in GENERATORS:
        raise ConfigError(
            f'answers cannot be drawn with "{generator}".{did_you_mean(generator, GENERATORS)} Known: '
            f"{', '.join(GENERATORS)}"
        )
    return replace(scale, decoding=replace(scale.decoding, generate_with=generator))


def suites_folder(out: Path, scale: Scale, data: Path | None) -> Path:
    """Where the runs of a scale, or of a user's own votes, stand.

    Examples
    --------
    >>> suites_folder(Path("runs"), SCALES["tiny"], Path("votes/mtbench.parquet")).as_posix()
    'runs/tiny-mtbench'
    """
    return out / (scale.name if data is None else f"{scale.name}-{data.stem}")


def about_data(corpora: Sequence[Corpus], scale: Scale, data: Path | None) -> tuple[str, ...]:
    """What is to be said of a user's own file: of its votes, and of which corpora it is not."""
    if data is None:
        return ()
    of_file = [corpus for corpus in corpora if own_file(corpus, corpora, data)]
    lines = [line for corpus in of_file for line in about_votes(corpus, scale, data)]
    if len(of_file) < len(corpora):
        lines.append(
            f"{data.name} holds the votes on length and Markdown; the signed pairs are those of scale {scale.name}"
        )
    return tuple(dict.fromkeys(lines))


def plan_suites(
    suites: Sequence[Suite],
    scale: Scale,
    seeds: Sequence[int],
    out: Path,
    data: Path | None = None,
) -> SuitePlan:
    """What `run_suites` would do; trains nothing and loads no model.

    A corpus that is out of reach is named, and what is there of its runs is then told from the folders alone.

    Raises
    ------
    DataError
        The votes of a corpus cannot be used.
    """
    runs = planned_runs(suites, scale, seeds)
    corpora = list(dict.fromkeys(run.corpus for run in runs))
    stages, unread = read_stages(corpora, scale, out, data)
    told = (
        *about_data(corpora, scale, data),
        *unread,
        *gate_lines(scale.material(corpus, own_file(corpus, corpora, data)) for corpus in stages),
        *free_theta_lines(runs, stages),
    )
    return plan(runs, out, refused_runs(runs, stages, scale, out), told)


def run_suites(
    suites: Sequence[Suite],
    scale: Scale,
    seeds: Sequence[int],
    out: Path,
    progress: Progress,
    jobs: int = 1,
    data: Path | None = None,
) -> list[SuiteResult]:
    """Run what is not there yet, and read the tables and patterns of every suite.

    Raises
    ------
    ConfigError
        A model or judge that is needed cannot be used, a corpus is out of reach, or a run folder holds a run with other
        data or settings; finished runs stay as they are.
    DataError
        The votes cannot be used, or an evaluation prompt is a training prompt; nothing was trained then.
    """
    if scale.decoding.generate_with == "vllm":
        require_vllm()
    require_needs(suites, scale, seeds, out, data)
    execute(planned_runs(suites, scale, seeds), scale, out, data, jobs, progress)
    return [read_suite(suite, scale, seeds, out, data) for suite in suites]


def read_suite(
    suite: Suite, scale: Scale, seeds: Sequence[int], out: Path, data: Path | None = None
) -> SuiteResult:
    """The tables and patterns of a suite from the runs that are there, and from the votes that they were trained on.

    Parameters
    ----------
    suite : Suite
    scale : Scale
    seeds : sequence of int
    out : Path
    data : Path or None
        A user's own file, of which ``out`` holds the runs.
    """

    def material(corpus: Corpus) -> Material:
        return scale.material(corpus, own_file(corpus, suite.corpora(), data))

    # the first panel of a corpus stands for it
    titles = {panel.corpus: panel.title for panel in reversed(suite.panels)}
    here = [corpus for corpus in suite.corpora() if scale.has(corpus)]
    plan = scale.seed_plan(seeds)
    before = [
        votes_table(panel, material(panel.corpus).judgments)
        for panel in suite.votes
        if has_reference(out, panel)
    ]
    signatures = [
        table
        for corpus in suite.signatures
        for table in name_tables(corpus, Found(out / corpus.folder, seeds))
    ]
    noted = [
        with_notes(table, out / table.panel.corpus.folder, material) for table in tables(suite, out, plan)
    ]
    return SuiteResult(
        suite,
        (*before, *noted, *signatures),
        tuple(found_patterns(suite.patterns, [found_runs(suite, corpus, out, plan) for corpus in here])),
        tuple(titles[corpus] for corpus in suite.corpora() if corpus not in here),
        about_data(here, scale, data),
        scale.stand_in,
    )
