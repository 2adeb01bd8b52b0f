"""The data table: sortable, filterable, paged. Wide tables scroll; on narrow screens rows become cards."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from nicegui import ui
from nicegui.elements.table import Table
from nicegui.events import GenericEventArguments

from console.format import Formatted

_CELL = r"""
<q-td :props="props" :data-label="props.col.label"
  :class="{wrap: props.value?.wrap, text: props.value?.text, acts: props.value?.acts}">
  <div v-if="props.value">
    <a v-if="props.value.href" :href="props.value.href" :title="props.value.h" class="name">{{ props.value.t }}</a>
    <span v-else-if="props.value.tone" :class="'badge ' + props.value.tone" :title="props.value.h"
      >{{ props.value.t }}</span>
    <template v-else-if="props.value.acts">
      <q-btn v-for="act in Object.values(props.value.acts)" :key="act.id" flat dense no-caps
        :class="'row-act ' + (act.tone || '')" :label="act.label" :aria-label="act.aria"
        @click="$parent.$emit('act', {id: act.id, row: props.row.id})" />
    </template>
    <span v-else :class="props.value.mono ? 'mono' : ''" :title="props.value.h">{{ props.value.t }}</span>
    <q-btn v-if="props.value.copy" flat dense no-caps class="row-act" label="Copy"
      :aria-label="'Copy ' + props.value.t" :data-copy="props.value.t" />
    <span v-if="props.value.bar >= 0"
      :class="'bar cellbar ' + (props.value.bar >= 0.9 && !props.value.progress ? 'bad' : '')"><i
      :style="{display: 'block', width: Math.min(100, props.value.bar * 100) + '%'}"></i></span>
    <span v-if="props.value.sub" class="sub">{{ props.value.sub }}</span>
  </div>
</q-td>
"""
_SORT = (
    "(a, b) => { const l = a?.s ?? a?.t ?? '', r = b?.s ?? b?.t ?? ''; return l < r ? -1 : l > r ? 1 : 0 }"
)
_FILTER = (
    "(rows, terms, cols) => { const want = String(terms || '').toLowerCase();"
    " return rows.filter(row => !want || cols.some(col => {"
    " const cell = row[col.name] || {}; return [cell.t, cell.sub, cell.h].some(part =>"
    " String(part || '').toLowerCase().includes(want)) })) }"
)

_HEADER = """
<q-th :props="props">
  <button v-if="props.col.sortable" type="button" class="sort">{{ props.col.label }}</button>
  <span v-else-if="props.col.label">{{ props.col.label }}</span>
  <span v-else class="visually-hidden">Actions</span>
</q-th>
"""
"""A column's title. That of a sortable column is a button, so that the keyboard reaches it."""
Cell = dict[str, Any]
"""The content of one cell, with the keys that `_CELL` reads."""
Row = dict[str, Any]
"""Column name -> Cell, and `id`: the text that the row's actions pass to their handler."""


class Column(msgspec.Struct, frozen=True):
    """One column. `numeric` aligns it right and sorts it by `Formatted.sort`."""

    name: str
    label: str
    numeric: bool = False
    sortable: bool = True


def cell(
    value: Formatted | str,
    *,
    href: str = "",
    sub: str = "",
    tone: str = "",
    mono: bool = False,
    wrap: bool = False,
    text: bool = False,
    bar: float | None = None,
    progress: bool = False,
    copy: bool = False,
) -> Cell:
    """A cell with a value: a link with `href`, a badge with `tone`, a second line with `sub`.

    `wrap` is for sentences, `text` for names that may be long, `bar` a usage bar from 0 to 1,
    with `progress` one of work that is done, which is not bad when it is full. `copy` adds a button that copies it.
    """
    made: Cell = (
        {"t": value} if isinstance(value, str) else {"t": value.text, "h": value.exact, "s": value.sort}
    )
    if isinstance(value, str):
        made["s"] = value.lower()
    else:
        made["s"] = max(-1e300, min(1e300, value.sort))  # JSON has no infinities
    for name, given in (
        ("href", href),
        ("sub", sub),
        ("tone", tone),
        ("mono", mono),
        ("wrap", wrap),
        ("text", text),
        ("progress", progress),
        ("copy", copy),
    ):
        if given:
            made[name] = given
    if bar is not None:
        made["bar"] = bar
    return made


def actions_cell(actions: Sequence[tuple[str, str, str]], subject: str) -> Cell:
    """Buttons of a row: (action, label, tone). `subject` names the row for screen readers."""
    return {
        "acts": {
            act: {"id": act, "label": label, "tone": tone, "aria": f"{label} {subject}"}
            for act, label, tone in actions
        },
        "t": "",
    }


def data_table(
    columns: Sequence[Column],
    rows: list[Row],
    *,
    label: str,
    nothing: str,
    on_action: Callable[[str, str], Awaitable[None]] | None = None,
    page_size: int = 25,
    sort_by: str = "",
    descending: bool = False,
    cards: bool = True,
) -> Table:
    """A table of `rows`. A row's button calls `on_action(action, row id)`, which must be wrapped with `viewer.act`."""
    pagination: dict[str, Any] = {"rowsPerPage": page_size}
    if sort_by:
        pagination |= {"sortBy": sort_by, "descending": descending}
    table = ui.table(
        columns=[
            {
                "name": column.name,
                "label": column.label,
                "field": column.name,
                "align": "right" if column.numeric else "left",
                "sortable": column.sortable and column.name != "acts",
                ":sort": _SORT,
            }
            for column in columns
        ],
        rows=rows,
        row_key="id",
        pagination=pagination,
    )
    table.props("flat binary-state-sort")
    table.props[":filter-method"] = _FILTER
    table.props["no-data-label"] = nothing
    table.props["no-results-label"] = "Nothing matches the search."
    table.props["aria-label"] = label
    table.props["rows-per-page-options"] = [25, 50, 100]
    table.classes("data cards" if cards else "data")
    table.add_slot("header-cell", _HEADER)
    table.add_slot("body-cell", _CELL)
    _fit_pagination(table, page_size)
    if on_action is not None:
        act_on = on_action

        async def pressed(event: GenericEventArguments) -> None:
            await act_on(str(event.args["id"]), str(event.args["row"]))

        table.on("act", pressed)
    return table


def set_rows(table: Table, rows: list[Row]) -> None:
    """Replace the rows, keeping sort order and page. Does nothing when the rows are unchanged."""
    if table.rows == rows:
        return
    table.rows = rows
    _fit_pagination(table, 25)


def _fit_pagination(table: Table, page_size: int) -> None:
    """Hide the pager when all rows fit on one page."""
    table.props["hide-pagination"] = bool(table.rows) and len(table.rows) <= page_size
