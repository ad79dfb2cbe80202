// The kinds of panels that the dashboards have. Numbers, graphs and tables are drawn by @grafana/ui; bars and heat maps,
// which are in no package, by this page.

import { FieldColorModeId, PanelPlugin } from '@grafana/data';

import { Bars } from './bars.jsx';
import { Graph } from './graph.jsx';
import { HeatMap } from './heatmap.jsx';
import { Numbers } from './numbers.jsx';
import { Rows } from './rows.jsx';

// Settings of fields that are the plugin's own keep their values as they are.
function customs(...names) {
  return (builder) => {
    for (const [name, defaultValue] of names) {
      builder.addCustomEditor({
        id: name,
        path: name,
        name,
        defaultValue,
        editor: () => null,
        override: () => null,
        process: (value) => value,
        shouldApply: () => true,
      });
    }
  };
}

// What a line is like unless the panel says otherwise, as in Grafana.
const LINE = [
  ['drawStyle', 'line'],
  ['lineInterpolation', 'linear'],
  ['lineWidth', 1],
  ['fillOpacity', 0],
  ['gradientMode', 'none'],
  ['spanNulls', false],
  ['insertNulls', false],
  ['showPoints', 'auto'],
  ['pointSize', 5],
  ['stacking', { mode: 'none', group: 'A' }],
  ['axisPlacement', 'auto'],
  ['axisLabel', ''],
  ['axisColorMode', 'text'],
  ['axisBorderShow', false],
  ['scaleDistribution', { type: 'linear' }],
  ['axisCenteredZero', false],
  ['axisSoftMin', undefined],
  ['axisSoftMax', undefined],
  ['hideFrom', { tooltip: false, viz: false, legend: false }],
  ['thresholdsStyle', { mode: 'off' }],
  ['lineStyle', undefined],
  ['barAlignment', 0],
];

function plugin(id, component, names, color = FieldColorModeId.Thresholds) {
  const made = new PanelPlugin(component).useFieldConfig({
    standardOptions: { color: { defaultValue: { mode: color } } },
    useCustomConfig: customs(...names),
  });
  made.setDataSupport({ annotations: true, alertStates: false });
  made.meta = { id, name: id, type: 'panel', info: { version: '', logos: {} }, module: '', baseUrl: '' };
  return made;
}

export const plugins = {
  stat: plugin('stat', Numbers, []),
  timeseries: plugin('timeseries', Graph, LINE, FieldColorModeId.PaletteClassic),
  table: plugin('table', Rows, [
    ['align', 'auto'],
    ['width', undefined],
    ['minWidth', undefined],
    ['cellOptions', { type: 'auto' }],
    ['inspect', false],
    ['hidden', false],
    ['filterable', false],
  ]),
  barchart: plugin('barchart', Bars, LINE, FieldColorModeId.PaletteClassic),
  heatmap: plugin('heatmap', HeatMap, [['hideFrom', undefined], ['scaleDistribution', undefined]]),
};
