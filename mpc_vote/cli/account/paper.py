"""`mpc-vote account paper`: the published epsilons beside what their settings cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from mpc_vote.cli.account.figures import accounts
from mpc_vote.cli.account.options import PaperSettings
from mpc_vote.cli.common import check_writable, console, write_json
from mpc_vote.privacy.rounding import round_up
from mpc_vote.simulation import published


async def main(settings: PaperSettings) -> None:
    """Checks every row, shows, writes."""
    check_writable(settings.json_path)
    out = console(settings.json_path)
    checked = [published.check(row) for row in published.VOTES]
    for section in published.SECTIONS:
        _show_section(out, section, [found for found in checked if found.row.section is section])
    _show_others(out)
    derived = sum(found.derived for found in checked)
    total = len(checked) + sum(len(row.reported) for row in published.OTHERS)
    out.print(
        f"{derived} of {total} reported numbers can be derived from the paper's own formula at "
        "the settings it states. A match with another reading may be chance: several are tried."
    )
    figures = {
        "votes": [_checked(found) for found in checked],
        "others": [_other(row) for row in published.OTHERS],
    }
    write_json(settings.json_path, figures)


def _show_section(
    out: Console, section: published.PaperTable, rows: Sequence[published.CheckedRow]
) -> None:
    delta = (
        f"delta not stated, {published.ASSUMED_DELTA:g} assumed"
        if section.delta is None
        else f"delta {section.delta:g}"
    )
    table = Table(
        "vote",
        "sigma",
        "Q",
        "paper",
        "its formula",
        "simple",
        "tight",
        "exact",
        title=f"{section.name}: {section.about}, {delta}",
        title_justify="left",
    )
    for found in rows:
        row, ours = found.row, found.ours
        figures = (None,) * 3 if ours is None else (ours.simple, ours.tight, ours.exact)
        table.add_row(
            row.name,
            "?" if row.sigma is None else f"{row.sigma:g}",
            str(row.queries),
            f"{row.reported:.1f}",
            *(("-" if value is None else round_up(value)) for value in (found.stated, *figures)),
        )
    out.print(table)
    for found in rows:
        out.print(f"- {found.row.name}: {found.verdict}{_claim(found.holds)}")


def _claim(holds: bool | None) -> str:
    if holds is None:
        return ""
    if holds:
        return "; the claim is true nevertheless, the settings cost less"
    return "; the claim is FALSE, the settings cost more"


def _show_others(out: Console) -> None:
    table = Table(
        "row", "paper", "", title="data-dependent bounds, and baselines", title_justify="left"
    )
    for row in published.OTHERS:
        reported = ", ".join(f"{value:.1f}" for value in row.reported)
        table.add_row(f"{row.section.name}: {row.name}", reported, row.verdict)
    out.print(table)


def _checked(found: published.CheckedRow) -> dict[str, Any]:
    row = found.row
    return {
        "table": row.section.name,
        "row": row.name,
        "level": row.section.level.value,
        "sigma": row.sigma,
        "queries": row.queries,
        "k": min(row.ks, default=None),
        "delta": row.delta,
        "delta_stated": row.section.delta is not None,
        "paper": row.reported,
        "formula": found.stated,
        "ours": None if found.ours is None else accounts(found.ours),
        "derived": found.derived,
        "match": found.match,
        "holds": found.holds,
        "verdict": found.verdict,
    }


def _other(row: published.UnderivedRow) -> dict[str, Any]:
    return {
        "table": row.section.name,
        "row": row.name,
        "level": row.section.level.value,
        "paper": list(row.reported),
        "derived": False,
        "verdict": row.verdict,
    }
