"""Write docs/results/trl_keys.md: `python -m bench.trl_keys`."""

from pathlib import Path

from badpo.training.recipe import DataChoice, ModelChoice
from badpo.training.trl_keys import ACCEPTED_WITHOUT_EFFECT, HONOURED, REFUSED

PAGE = Path(__file__).parents[1] / "docs" / "results" / "trl_keys.md"
HONOURED_MODEL = HONOURED.keys() & ModelChoice.model_fields
HONOURED_DATA = HONOURED.keys() & DataChoice.model_fields
HONOURED_TRAINING = HONOURED.keys() - HONOURED_MODEL - HONOURED_DATA


def page() -> str:
    """List the effect of every key of TRL; keys with the same reason are listed together."""
    lines = [
        "# Keys of TRL",
        "",
        "What becomes of each key of a `trl dpo` recipe, from `badpo.training.trl_keys`; written by",
        "`python -m bench.trl_keys`.",
        "",
        "## Honoured",
    ]
    honoured = {"Model": HONOURED_MODEL, "Data": HONOURED_DATA, "Training": HONOURED_TRAINING}
    for kind, keys in honoured.items():
        lines += ["", f"{kind}: {', '.join(f'`{key}`' for key in sorted(keys))}."]
    named = {
        "Accepted without effect": ("Each is named in a notice.", ACCEPTED_WITHOUT_EFFECT),
        "Refused": ("A neutral value passes; any other one stops the command.", REFUSED),
    }
    for title, (what, reasons) in named.items():
        lines += ["", f"## {title}", "", what, ""]
        for reason in dict.fromkeys(reasons.values()):
            keys = ", ".join(f"`{key}`" for key, why in reasons.items() if why == reason)
            lines.append(f"- {keys}: {reason}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
