"""Panels with the habits of this house: each says what it shows, in which unit, and why it may be empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders import barchart, common, heatmap, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmaps

from .palette import BREACH, BUDGET, MUTED, NEUTRAL, UNSURE
from .targets import DATASOURCE, Target

__all__ = [
    "Override",
    "bars",
    "colour",
    "columns",
    "dashed",
    "dotted",
    "lights",
    "property_",
    "rank_heatmap",
    "stacked",
    "text",
    "text_for_nan",
    "trend",
    "values",
    "worded",
]

Override = tuple[models.MatcherConfig, list[models.DynamicConfigValue]]

# Rules are evaluated, and so recorded series change, every 30 seconds.
_RECORDED = "30s"

# The share of a step from which on a cell is as bright as can be. Colours that ran up to the largest share there is
# would show the noise of even ranks as brightly as a straggler.
_BRIGHT = 0.4


def property_(name: str, value: object) -> models.DynamicConfigValue:
    """Return one setting of a field, such as its unit or width."""
    return models.DynamicConfigValue(id_val=name, value=value)


def _fixed(colour_: str) -> models.DynamicConfigValue:
    return property_("color", {"mode": "fixed", "fixedColor": colour_})


def colour(ref: str, colour_: str) -> Override:
    """Give every series of the query ``ref`` one colour."""
    return models.MatcherConfig(id_val="byFrameRefID", options=ref), [_fixed(colour_)]


def dashed(ref: str, colour_: str = BUDGET) -> Override:
    """Draw the query ``ref`` as what others are measured against."""
    style = property_("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})
    flat = [property_("custom.fillOpacity", 0), property_("custom.lineWidth", 2)]
    return models.MatcherConfig(id_val="byFrameRefID", options=ref), [_fixed(colour_), style, *flat]


def dotted(ref: str, colour_: str) -> Override:
    """Draw the query ``ref`` as what goes beyond the solid line of the same colour."""
    style = property_("custom.lineStyle", {"fill": "dot", "dash": [2, 4]})
    return models.MatcherConfig(id_val="byFrameRefID", options=ref), [_fixed(colour_), style]


def text(texts: Mapping[int, tuple[str, str]]) -> models.ValueMap:
    """Return a mapping from numbers to a text and its colour."""
    return models.ValueMap(
        options={
            str(number): models.ValueMappingResult(text=said, color=colour_, index=index)
            for index, (number, (said, colour_)) in enumerate(texts.items())
        }
    )


def text_for_nan(said: str) -> models.SpecialValueMap:
    """Return a mapping that says why there is no number."""
    result = models.ValueMappingResult(text=said, color=UNSURE, index=0)
    return models.SpecialValueMap(
        options=models.DashboardSpecialValueMapOptions(match=models.SpecialValueMatch.NA_N, result=result)
    )


class _DataLink(Builder[dict[str, object]]):
    """A link from a value. The library takes links of dashboards alone for it, which have other fields."""

    def __init__(self, link: dict[str, object]) -> None:
        self._link = link

    def build(self) -> dict[str, object]:
        return self._link


def _thresholds(steps: Mapping[float | None, str]) -> builders.ThresholdsConfig:
    return (
        builders.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=colour_) for value, colour_ in steps.items()])
    )


def _dressed(panel, title: str, description: str, unit: str, empty: str, targets: Sequence[Target]):  # type: ignore[no-untyped-def]
    """Set what no panel may lack. ``empty`` is shown in place of data that is not there."""
    panel = panel.title(title).description(description).unit(unit).no_value(empty).datasource(DATASOURCE)
    for target in targets:
        panel.with_target(target)
    return panel


def _overridden(panel, overrides: Sequence[Override]):  # type: ignore[no-untyped-def]
    for matcher, properties in overrides:
        panel.with_override(matcher, properties)
    return panel


def values(
    title: str,
    description: str,
    unit: str,
    empty: str,
    targets: Sequence[Target],
    *,
    decimals: int | None = None,
    overrides: Sequence[Override] = (),
    thresholds: Mapping[float | None, str] | None = None,
    named: bool = True,
    filled: bool = False,
    mappings: Sequence[models.ValueMapping] = (),
    links: Sequence[dict[str, object]] = (),
    title_size: int | None = None,
) -> stat.Panel:
    """Return large numbers, one a series, with the series' name above each if ``named``.

    ``title_size``, in pixels, is for names that would else be shrunk until they fit in a line.
    """
    panel = (
        _dressed(stat.Panel(), title, description, unit, empty, targets)
        .min(0)
        .text_mode(kinds.BigValueTextMode.VALUE_AND_NAME if named else kinds.BigValueTextMode.VALUE)
        .color_mode(kinds.BigValueColorMode.BACKGROUND_SOLID if filled else kinds.BigValueColorMode.VALUE)
        .graph_mode(kinds.BigValueGraphMode.NONE)
        .justify_mode(kinds.BigValueJustifyMode.CENTER)
        .orientation(kinds.VizOrientation.AUTO)
        .wide_layout(False)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .thresholds(_thresholds(thresholds or {None: UNSURE if filled else NEUTRAL}))
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .mappings(list(mappings))
        .data_links([_DataLink(link) for link in links])
    )
    if decimals is not None:
        panel.decimals(decimals)
    if title_size is not None:
        panel.text(common.VizTextDisplayOptions().title_size(title_size))
    return _overridden(panel, overrides)


def worded(
    title: str, description: str, empty: str, target: Target, texts: Mapping[int, tuple[str, str]]
) -> stat.Panel:
    """Return a state in words: ``target`` is a number, and ``texts`` its meaning and colour."""
    return values(title, description, "none", empty, [target], named=False, filled=True, mappings=[text(texts)])


def lights(
    title: str, description: str, unit: str, empty: str, met: Target, unmet: Target, *, decimals: int = 1
) -> stat.Panel:
    """Return a light: of two queries, ``met`` and ``unmet``, one has a value, and its name says what is the case."""
    overrides = [colour(met._internal.ref_id, NEUTRAL), colour(unmet._internal.ref_id, BREACH)]
    return values(title, description, unit, empty, [met, unmet], decimals=decimals, overrides=overrides, filled=True)


def _graph(
    title: str,
    description: str,
    unit: str,
    empty: str,
    targets: Sequence[Target],
    *,
    recorded: bool,
    legend: Sequence[str],
) -> timeseries.Panel:
    panel = (
        _dressed(timeseries.Panel(), title, description, unit, empty, targets)
        .min(0)
        .line_width(2)
        .fill_opacity(0)
        .show_points(kinds.VisibilityMode.NEVER)
        .span_nulls(False)
        .legend(
            common.VizLegendOptions()
            .display_mode(kinds.LegendDisplayMode.TABLE if legend else kinds.LegendDisplayMode.LIST)
            .placement(kinds.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(list(legend))
        )
        .tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.SHADES).fixed_color(NEUTRAL))
    )
    if unit == "percentunit":
        # Nothing but zeros would else be drawn on an axis up to 10,000 %.
        panel.axis_soft_max(0.1)
    return panel.interval(_RECORDED) if recorded else panel


def trend(
    title: str,
    description: str,
    unit: str,
    empty: str,
    targets: Sequence[Target],
    *,
    overrides: Sequence[Override] = (),
    recorded: bool = False,
    legend: Sequence[str] = (),
    up_to: float | None = None,
    points: int | None = None,
) -> timeseries.Panel:
    """Return lines over time, no higher than ``up_to`` if given.

    ``recorded``: of series that rules record, which have no more points than that. ``points``: no more of them, where
    each is dear.
    """
    panel = _graph(title, description, unit, empty, targets, recorded=recorded, legend=legend)
    if points is not None:
        panel.max_data_points(points)
    if up_to is not None:
        panel.max(up_to)
    return _overridden(panel, overrides)


def stacked(
    title: str,
    description: str,
    unit: str,
    empty: str,
    targets: Sequence[Target],
    *,
    overrides: Sequence[Override] = (),
    whole: float | None = None,
) -> timeseries.Panel:
    """Return areas over time that add up, to ``whole`` where that is known."""
    panel = (
        _graph(title, description, unit, empty, targets, recorded=True, legend=["mean"])
        .fill_opacity(70)
        .line_width(1)
        .stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL).group("A"))
    )
    if whole is not None:
        panel.max(whole)
    return _overridden(panel, overrides)


def rank_heatmap(
    title: str, description: str, unit: str, empty: str, target: Target, *, rows: str = "rank"
) -> heatmap.Panel:
    """Return a row of cells over time for each series of shares, the first on top, the darker the smaller."""
    return (
        _dressed(heatmap.Panel(), title, description, unit, empty, [target])
        .min(0)
        .max_data_points(120)
        .calculate(False)
        .rows_frame(heatmap.RowsHeatmapOptions().layout(kinds.HeatmapCellLayout.UNKNOWN).value(title))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmaps.HeatmapColorMode.SCHEME)
            .scheme("Cividis")
            .steps(64)
            .min(0)
            .max(_BRIGHT)
        )
        .cell_values(heatmap.CellValues().unit(unit))
        .cell_gap(0)
        .y_axis(heatmap.YAxisConfig().unit("none").reverse(True).axis_label(rows))
        .mode(kinds.TooltipDisplayMode.SINGLE)
        .show_color_scale(True)
        .show_legend()
    )


def bars(
    title: str,
    description: str,
    unit: str,
    empty: str,
    targets: Sequence[Target],
    *,
    of: str,
    colours: Mapping[str, str],
) -> barchart.Panel:
    """Return one stacked bar for each value of the label ``of``, cut by phase in the order of ``colours``.

    The queries are rows with the labels ``of`` and ``phase``.
    """
    corner = f"{of}\\phase"
    panel = (
        _dressed(barchart.Panel(), title, description, unit, empty, targets)
        .min(0)
        .with_transformation(
            models.DataTransformerConfig(
                id_val="groupingToMatrix",
                options={"columnField": "phase", "rowField": of, "valueField": "Value", "emptyValue": "null"},
            )
        )
        .with_transformation(
            models.DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {},
                    "indexByName": {corner: 0, **{phase: 1 + index for index, phase in enumerate(colours)}},
                    "renameByName": {corner: of},
                },
            )
        )
        .orientation(kinds.VizOrientation.HORIZONTAL)
        .stacking(kinds.StackingMode.NORMAL)
        .show_value(kinds.VisibilityMode.NEVER)
        .x_field(of)
        .bar_width(0.7)
        .group_width(0.7)
        .fill_opacity(85)
        .legend(
            common.VizLegendOptions()
            .display_mode(kinds.LegendDisplayMode.LIST)
            .placement(kinds.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs([])
        )
        .tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI))
    )
    named = [
        (models.MatcherConfig(id_val="byName", options=phase), [_fixed(colour_)]) for phase, colour_ in colours.items()
    ]
    return _overridden(panel, named)


def columns(
    title: str,
    description: str,
    unit: str,
    empty: str,
    targets: Sequence[Target],
    *,
    order: Mapping[str, str],
    by: str,
    overrides: Mapping[str, list[models.DynamicConfigValue]],
    mappings: Sequence[models.ValueMapping] = (),
    numeric: Sequence[str] = (),
) -> table.Panel:
    """Return a table of the labels and values that ``order`` names, as its keys, with their titles.

    A value of one query among several is called ``Value #`` and its letter. Labels in ``numeric`` become numbers, so
    that they sort as such. The largest of the column titled ``by`` come first. ``overrides`` go by title.
    """
    panel = _dressed(table.Panel(), title, description, unit, empty, targets)
    steps: list[tuple[str, dict[str, object]]] = []
    if len(targets) > 1:
        steps.append(("merge", {}))
    if numeric:
        conversions = [{"targetField": name, "destinationType": "number"} for name in numeric]
        steps.append(("convertFieldType", {"fields": {}, "conversions": conversions}))
    hidden = ["Time", "cluster", "namespace", "run", "window"]
    steps.append(
        (
            "organize",
            {
                "excludeByName": {name: True for name in hidden if name not in order},
                "indexByName": {name: index for index, name in enumerate(order)},
                "renameByName": dict(order),
            },
        )
    )
    steps.append(("sortBy", {"fields": {}, "sort": [{"field": by, "desc": True}]}))
    for name, options in steps:
        panel.with_transformation(models.DataTransformerConfig(id_val=name, options=options))
    panel.show_header(True).cell_height(kinds.TableCellHeight.SM).mappings(list(mappings))
    panel.color_scheme(builders.FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color(MUTED))
    # What says why the whole table is empty would otherwise stand in every cell that is.
    blank = property_("noValue", "-")
    for name in (title for title in order.values() if title):
        panel.with_override(models.MatcherConfig(id_val="byName", options=name), [blank, *overrides.get(name, [])])
    return panel
