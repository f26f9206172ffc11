"""Writes a statement's page as a PDF of one sheet of A4, with its fonts in it.

The fonts have Latin, Greek and Cyrillic letters. Any other character is shown as ◊, and the page
says so; the HTML of the same statement has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.domain.reports.statement import StatementPage, StatementTable

if TYPE_CHECKING:
    from fpdf import FPDF

FONTS = Path(__file__).parent / "fonts"
FAMILY = "statement"
MISSING = "◊"
MISSING_NOTE = (
    f"{MISSING} stands for a character that the fonts of this PDF lack (they have Latin, Greek and "
    "Cyrillic letters). The HTML statement shows it."
)
# Millimetres on a sheet of A4, 210 × 297.
LEFT, WIDTH, TOP, BOTTOM = 16.0, 178.0, 12.0, 12.0
GAP = 8.0  # between two columns
MOST_LETTERS = 500  # more than fit into a line; each letter that is cut costs a look at all others
HALF = (WIDTH - GAP) / 2
INK, GREY, BLUE, LINE = (28, 39, 51), (90, 106, 120), (20, 80, 110), (221, 228, 234)
GREEN, AMBER, PALE = (29, 107, 69), (138, 82, 0), (242, 246, 248)
# Shares of a table's width, by its number of columns.
WIDTHS = {3: (0.5, 0.3, 0.2), 4: (0.33, 0.24, 0.17, 0.26), 5: (0.1, 0.13, 0.16, 0.47, 0.14)}
Colour = tuple[int, int, int]


def to_pdf(page: StatementPage) -> bytes:
    """Return the page as a PDF. The same page has the same bytes with the same release of fpdf2."""
    sheet = _Sheet(page)
    sheet.heading()
    sheet.headline()
    sheet.sums()
    sheet.tables()
    sheet.notes()
    sheet.signatures()
    return sheet.content()


def missing_letters(text: str) -> set[str]:
    """Return the characters of a text that the fonts lack."""
    known = _characters()
    return {letter for letter in text if not letter.isspace() and ord(letter) not in known}


@cache
def _characters() -> frozenset[int]:
    """Return the characters that both fonts have."""
    from fontTools.ttLib import TTFont  # fpdf2 brings it

    found = []
    for path in sorted(FONTS.glob("*.ttf")):
        with TTFont(path) as font:
            found.append(frozenset(font.getBestCmap()))
    return frozenset.intersection(*found)


class _Sheet:
    """A page that is drawn from its top to its bottom."""

    def __init__(self, page: StatementPage) -> None:
        """Open a sheet, with the fonts, and a date that is the statement's own."""
        from fpdf import FPDF  # only this format needs it

        self._page = page
        self._has_missing = False
        self._pdf: FPDF = FPDF(format="A4")
        pdf = self._pdf
        pdf.set_creation_date(page.created_at or datetime(1970, 1, 1, tzinfo=UTC))
        pdf.set_margins(LEFT, TOP, LEFT)
        pdf.set_auto_page_break(True, margin=BOTTOM)
        pdf.add_font(FAMILY, fname=FONTS / "SourceSansPro-Regular.ttf")
        pdf.add_font(FAMILY, style="B", fname=FONTS / "SourceSansPro-Semibold.ttf")
        pdf.c_margin = 0  # texts and lines begin at the same place
        pdf.set_title(self._shown(f"{page.title}: {page.cost_centre}, {page.month}"))
        pdf.set_lang("en")
        pdf.add_page()

    def content(self) -> bytes:
        """Return the file."""
        return bytes(self._pdf.output())

    def heading(self) -> None:
        """Draw the name of the cost centre, the month and its state."""
        pdf, page = self._pdf, self._page
        pdf.set_fill_color(*BLUE)
        pdf.rect(0, 0, 210, 3, style="F")
        pdf.set_xy(LEFT, TOP)
        self._text(f"{page.title} · {page.month}", size=10, colour=GREY)
        state_width = self._badge(page.state, GREEN if page.is_final else AMBER)
        pdf.set_xy(LEFT, TOP + 5)
        self._text(page.cost_centre, size=18, bold=True, width=WIDTH - state_width - 4, height=8.5)
        if page.warning is not None:
            pdf.set_xy(LEFT, TOP + 14.5)
            self._text(page.warning, size=8.5, colour=AMBER)
        pdf.set_y(TOP + 20)

    def headline(self) -> None:
        """Draw the total with its change and share, and the facts beside it."""
        pdf, page = self._pdf, self._page
        top, height = pdf.get_y(), 33.0
        pdf.set_fill_color(*PALE)
        pdf.rect(LEFT, top, WIDTH, height, style="F")
        pdf.set_xy(LEFT + 5, top + 4)
        self._text(page.total_label, size=9, colour=GREY, width=HALF)
        pdf.set_xy(LEFT + 5, top + 9)
        self._text(page.total, size=24, bold=True, width=HALF, height=11, shrinks=True)
        pdf.set_xy(LEFT + 5, top + 20.5)
        self._text(page.change, size=9.5, width=HALF)
        pdf.set_xy(LEFT + 5, top + 25.5)
        self._text(page.share, size=9.5, colour=GREY, width=HALF)
        pdf.set_y(top + 4)
        for name, text in page.facts:
            y = pdf.get_y()
            pdf.set_xy(LEFT + HALF + GAP, y)
            self._text(name, size=9, colour=GREY, width=22)
            pdf.set_xy(LEFT + HALF + GAP + 22, y)
            self._text(text, size=9, width=HALF - 27)
            pdf.set_y(y + 5.2)
        pdf.set_y(top + height + 5)

    def sums(self) -> None:
        """Draw the parts of the total on the left, and the amounts in no total on the right."""
        top = self._pdf.get_y()
        for place, pairs in enumerate((self._page.sums, self._page.beside)):
            self._pdf.set_y(top)
            for name, text in pairs:
                self._pair(name, text, x=LEFT + place * (HALF + GAP), is_total=name == "Total")
        self._pdf.set_y(top + 5.5 * len(self._page.sums) + 4)

    def tables(self) -> None:
        """Draw teams beside models, and the adjustments below."""
        top = self._pdf.get_y()
        self._table(self._page.by_team, x=LEFT, width=HALF)
        left_end = self._pdf.get_y()
        self._pdf.set_y(top)
        self._table(self._page.by_model, x=LEFT + HALF + GAP, width=HALF)
        self._pdf.set_y(max(left_end, self._pdf.get_y()) + 5)
        self._table(self._page.adjustments, x=LEFT, width=WIDTH)

    def notes(self) -> None:
        """Draw the small print."""
        self._pdf.set_y(self._pdf.get_y() + 4)
        notes = [*self._page.notes]
        if self._has_missing:
            notes.append(MISSING_NOTE)
        for note in notes:
            self._pdf.set_x(LEFT)
            self._lines(note, size=7.5, colour=GREY, width=WIDTH, height=3.5)

    def signatures(self) -> None:
        """Draw the lines of the signatures, at the foot of the sheet if there is room."""
        pdf = self._pdf
        y = max(pdf.get_y() + 12, 297 - BOTTOM - 10)
        if y > 297 - BOTTOM - 6:
            pdf.add_page()
            y = TOP + 20
        pdf.set_draw_color(*INK)
        for place, name in enumerate(self._page.signatures):
            x = LEFT + place * (HALF + GAP)
            pdf.line(x, y, x + HALF, y)
            pdf.set_xy(x, y + 1)
            self._text(f"{name}: date, name, signature", size=8, colour=GREY, width=HALF)

    def _badge(self, text: str, colour: Colour) -> float:
        """Draw the state of the month at the right, and return its width."""
        pdf = self._pdf
        pdf.set_font(FAMILY, "B", 9)
        width = pdf.get_string_width(text) + 7
        pdf.set_draw_color(*colour)
        pdf.rect(LEFT + WIDTH - width, TOP, width, 6.5, round_corners=True, corner_radius=3)
        pdf.set_xy(LEFT + WIDTH - width, TOP + 0.9)
        self._text(text, size=9, bold=True, colour=colour, width=width, align="C")
        return width

    def _pair(self, name: str, text: str, *, x: float, is_total: bool) -> None:
        """Draw a label and its amount in a line, with a rule above a total."""
        pdf = self._pdf
        y = pdf.get_y()
        pdf.set_draw_color(*(BLUE if is_total else LINE))
        if is_total:
            pdf.line(x, y, x + HALF, y)
        pdf.set_xy(x, y + 0.5)
        self._text(name, size=9.5, colour=INK if is_total else GREY, bold=is_total, width=HALF / 2)
        pdf.set_xy(x + HALF * 0.35, y + 0.5)
        self._text(text, size=9.5, bold=is_total, width=HALF * 0.65, align="R")
        pdf.set_y(y + 5.5)

    def _table(self, table: StatementTable, *, x: float, width: float) -> None:
        """Draw a table: its title, header, rows, total and note."""
        pdf = self._pdf
        pdf.set_x(x)
        self._text(table.title, size=10.5, bold=True, colour=BLUE, width=width, height=5.5)
        pdf.set_y(pdf.get_y() + 6)
        if table.rows:
            widths = [width * share for share in WIDTHS[len(table.columns)]]
            self._row(table, table.columns, x=x, widths=widths, colour=GREY, bold=True)
            self._rule(x, width, BLUE)
            for row in table.rows:
                self._row(table, row, x=x, widths=widths)
                self._rule(x, width, LINE)
            if table.total is not None:
                self._rule(x, width, BLUE)
                self._row(table, table.total, x=x, widths=widths, bold=True)
        if table.note:
            pdf.set_xy(x, pdf.get_y() + 0.8)
            self._text(table.note, size=7.5, colour=GREY, width=width)
            pdf.set_y(pdf.get_y() + 3.5)

    def _row(
        self,
        table: StatementTable,
        cells: Sequence[str],
        *,
        x: float,
        widths: Sequence[float],
        colour: Colour = INK,
        bold: bool = False,
    ) -> None:
        """Draw a row, as high as its longest reason needs."""
        pdf = self._pdf
        if pdf.get_y() > 297 - BOTTOM - 12:
            pdf.add_page()
        top, bottom = pdf.get_y() + 0.6, pdf.get_y() + 4.6
        for at, (text, width) in enumerate(zip(cells, widths, strict=True)):
            pdf.set_xy(x, top)
            if table.columns[at] == "Reason":
                self._lines(text, size=8.5, width=width - 2, height=3.9, colour=colour, bold=bold)
                bottom = max(bottom, pdf.get_y() + 0.6)
            else:
                is_figure = at in table.figures
                self._text(
                    text,
                    size=8.5,
                    width=width if is_figure else width - 2,
                    colour=colour,
                    bold=bold,
                    align="R" if is_figure else "L",
                )
            x += width
        pdf.set_y(bottom)

    def _rule(self, x: float, width: float, colour: Colour) -> None:
        """Draw a line across a table."""
        self._pdf.set_draw_color(*colour)
        y = self._pdf.get_y()
        self._pdf.line(x, y, x + width, y)

    def _text(
        self,
        text: str,
        *,
        size: float,
        bold: bool = False,
        colour: Colour = INK,
        width: float = WIDTH,
        height: float = 4.0,
        align: str = "L",
        shrinks: bool = False,
    ) -> None:
        """Draw one line at the present place. A text that is too long is cut with an ellipsis; an
        amount, at the right or one that `shrinks`, is drawn smaller: it is never cut.
        """
        pdf = self._pdf
        pdf.set_font(FAMILY, "B" if bold else "", size)
        pdf.set_text_color(*colour)
        line = self._shown(text)
        room = width + 0.01
        if (shrinks or align == "R") and pdf.get_string_width(line) > room:
            pdf.set_font_size(size * room / pdf.get_string_width(line) * 0.99)
        if pdf.get_string_width(line) > room:
            line = line[:MOST_LETTERS]
            while line and pdf.get_string_width(f"{line}…") > room:
                line = line[:-1]
            line = f"{line}…"
        y = pdf.get_y()
        pdf.cell(width, height, line, align=align)
        pdf.set_y(y)

    def _lines(
        self,
        text: str,
        *,
        size: float,
        width: float,
        height: float,
        colour: Colour,
        bold: bool = False,
    ) -> None:
        """Draw a text at the present place in as many lines as it needs."""
        self._pdf.set_font(FAMILY, "B" if bold else "", size)
        self._pdf.set_text_color(*colour)
        self._pdf.multi_cell(
            width, height, self._shown(text), align="L", new_x="LEFT", new_y="NEXT"
        )

    def _shown(self, text: str) -> str:
        """Return a text in one line, with ◊ for each letter that the fonts lack."""
        line = " ".join(text.split())
        missing = missing_letters(line)
        self._has_missing |= bool(missing)
        return "".join(MISSING if letter in missing else letter for letter in line)
