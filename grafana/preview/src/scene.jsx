// A scene from a dashboard's JSON, as Grafana makes one when it opens the dashboard.

import {
  dataLayers,
  DataSourceVariable,
  EmbeddedScene,
  QueryVariable,
  SceneDataLayerSet,
  SceneDataTransformer,
  SceneGridItem,
  SceneGridLayout,
  SceneQueryRunner,
  SceneTimeRange,
  SceneVariableSet,
  VariableValueSelectors,
  VizPanel,
} from '@grafana/scenes';

const PROMETHEUS = { type: 'prometheus', uid: '${datasource}' };

function variable(model, chosen) {
  const { name, label } = model;
  if (model.type === 'datasource') {
    return new DataSourceVariable({ name, label, pluginId: model.query, value: 'prometheus', text: 'Prometheus' });
  }
  const value = chosen[name] ?? (model.includeAll ? '$__all' : '');
  return new QueryVariable({
    name,
    label,
    datasource: PROMETHEUS,
    query: model.query,
    sort: model.sort,
    refresh: model.refresh,
    isMulti: model.multi,
    includeAll: model.includeAll,
    allValue: model.allValue,
    value,
    text: value === '$__all' ? 'All' : value,
  });
}

function panel(model) {
  const runner = new SceneQueryRunner({
    datasource: PROMETHEUS,
    queries: model.targets,
    maxDataPoints: model.maxDataPoints,
    minInterval: model.interval,
  });
  return new SceneGridItem({
    x: model.gridPos.x,
    y: model.gridPos.y,
    width: model.gridPos.w,
    height: model.gridPos.h,
    body: new VizPanel({
      key: `panel-${model.id}`,
      title: model.title,
      description: model.description,
      pluginId: model.type,
      options: model.options,
      fieldConfig: model.fieldConfig,
      $data: new SceneDataTransformer({ $data: runner, transformations: model.transformations ?? [] }),
    }),
  });
}

export function scene(board, { from, to, chosen }) {
  return new EmbeddedScene({
    $timeRange: new SceneTimeRange({ from, to, timeZone: 'utc' }),
    $variables: new SceneVariableSet({ variables: board.templating.list.map((model) => variable(model, chosen)) }),
    $data: new SceneDataLayerSet({ layers: board.annotations.list.map(annotations) }),
    controls: [new VariableValueSelectors({})],
    body: new SceneGridLayout({ children: board.panels.map(panel), isLazy: false }),
  });
}

function annotations(model) {
  return new dataLayers.AnnotationsDataLayer({ name: model.name, query: model, isEnabled: model.enable, isHidden: false });
}
