"""Writes a statement's page as one HTML file: no script, no address of anything else, and every
text escaped. It prints on one sheet of A4.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from gateway.domain.reports.statement import StatementPage, StatementTable

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #eef1f4; color: #1c2733;
  font: 14px/1.45 "Source Sans Pro", "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
main { max-width: 50rem; margin: 2rem auto; padding: 2.5rem 3rem; background: #fff;
  border-top: 6px solid #14506e; box-shadow: 0 1px 6px #1c273326; }
header { display: flex; justify-content: space-between; align-items: flex-start; gap: 1rem; }
h1 { margin: 0; font-size: 1.5rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 0 0 .4rem; font-size: .95rem; color: #14506e; }
.kind { margin: 0 0 .15rem; color: #5a6a78; letter-spacing: .04em; }
.state { white-space: nowrap; padding: .15rem .7rem; border: 1px solid; border-radius: 1rem;
  font-weight: 600; }
.final { color: #1d6b45; background: #e8f4ee; }
.open { color: #8a5200; background: #fdf3e1; }
.warning { margin: 1rem 0 0; padding: .5rem .8rem; background: #fdf3e1;
  border-left: 4px solid #8a5200; }
.headline { display: grid; grid-template-columns: 1.25fr 1fr; gap: 2rem; margin: 1.5rem 0;
  padding: 1.1rem 1.3rem; background: #f2f6f8; }
.total { margin: 0; font-size: 2.1rem; font-weight: 600; line-height: 1.15; }
.headline p { margin: .15rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0; }
dt { color: #5a6a78; }
dd { margin: 0; overflow-wrap: anywhere; }
.figures dd { text-align: right; font-variant-numeric: tabular-nums; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 2rem; margin: 1.3rem 0; }
table { width: 100%; border-collapse: collapse; font-size: .9rem; }
th { text-align: left; font-weight: 600; color: #5a6a78; border-bottom: 1.5px solid #14506e; }
th, td { padding: .22rem .35rem; vertical-align: top; overflow-wrap: anywhere; }
td { border-bottom: 1px solid #dde4ea; }
tfoot td { font-weight: 600; border-bottom: 0; border-top: 1.5px solid #14506e; }
.figure { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.note, .small { color: #5a6a78; font-size: .8rem; }
.small { margin: 1.5rem 0 0; padding: 0; list-style: none; overflow-wrap: anywhere; }
.signatures { display: grid; grid-template-columns: 1fr 1fr; gap: 3rem; margin-top: 3rem; }
.signatures div { border-top: 1px solid #1c2733; padding-top: .25rem; color: #5a6a78;
  font-size: .85rem; }
@media (max-width: 42rem) {
  main { margin: 0; padding: 1.2rem; }
  .headline, .pair { grid-template-columns: 1fr; gap: 1rem; }
}
@page { size: A4; margin: 14mm; }
@media print {
  body { background: #fff; font-size: 9.5pt; line-height: 1.3; }
  main { max-width: none; margin: 0; padding: 3mm 0 0; box-shadow: none; }
  .headline, .state, .warning { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  section, table { break-inside: avoid; }
}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def to_html(page: StatementPage) -> bytes:
    """Return the page as an HTML document in UTF-8. The same page has the same bytes."""
    title = f"{page.title}: {page.cost_centre}, {page.month}"
    warning = "" if page.warning is None else f'<p class="warning">{escape(page.warning)}</p>\n'
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<header>
<div><p class="kind">{escape(page.title)} · {escape(page.month)}</p>
<h1>{escape(page.cost_centre)}</h1></div>
<div class="state {"final" if page.is_final else "open"}">{escape(page.state)}</div>
</header>
{warning}<section class="headline">
<div><p>{escape(page.total_label)}</p>
<p class="total">{escape(page.total)}</p>
<p>{escape(page.change)}</p>
<p>{escape(page.share)}</p></div>
<dl>{_pairs(page.facts)}</dl>
</section>
<section class="pair">
<dl class="figures">{_pairs(page.sums)}</dl>
<dl class="figures">{_pairs(page.beside)}</dl>
</section>
<section class="pair">
<div>{_table(page.by_team)}</div>
<div>{_table(page.by_model)}</div>
</section>
<section>{_table(page.adjustments)}</section>
<ul class="small">{"".join(f"<li>{escape(note)}</li>" for note in page.notes)}</ul>
<div class="signatures">{"".join(_signature(name) for name in page.signatures)}</div>
</main>
</body>
</html>
""".encode()


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """Return labels and texts as the items of a list of terms."""
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs)


def _table(table: StatementTable) -> str:
    """Return a table with its title and note."""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    if not table.rows:
        return f"<h2>{escape(table.title)}</h2>{note}"
    head = "".join(_cell("th", table, at, text) for at, text in enumerate(table.columns))
    rows = "".join(f"<tr>{_cells(table, row)}</tr>" for row in table.rows)
    total = "" if table.total is None else f"<tr>{_cells(table, table.total)}</tr>"
    return (
        f"<h2>{escape(table.title)}</h2><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody><tfoot>{total}</tfoot></table>{note}"
    )


def _cells(table: StatementTable, row: Iterable[str]) -> str:
    """Return the cells of a row."""
    return "".join(_cell("td", table, at, text) for at, text in enumerate(row))


def _cell(tag: str, table: StatementTable, at: int, text: str) -> str:
    """Return one cell; figures stand to the right."""
    kind = ' class="figure"' if at in table.figures else ""
    return f"<{tag}{kind}>{escape(text)}</{tag}>"


def _signature(name: str) -> str:
    """Return the line of a signature."""
    return f"<div>{escape(name)}: date, name, signature</div>"
