// What Grafana gives its libraries when it starts, and this page has to give them instead.

import {
  createTheme,
  dataLinksOverrideProcessor,
  displayNameOverrideProcessor,
  EventBusSrv,
  FieldColorModeId,
  identityOverrideProcessor,
  LoadingState,
  locationUtil,
  numberOverrideProcessor,
  standardFieldConfigEditorRegistry,
  standardTransformers,
  standardTransformersRegistry,
  stringOverrideProcessor,
  thresholdsOverrideProcessor,
  unitOverrideProcessor,
  valueMappingsOverrideProcessor,
} from '@grafana/data';
import {
  config,
  setAppEvents,
  setDataSourceSrv,
  setPluginImportUtils,
  setRunRequest,
  setTemplateSrv,
} from '@grafana/runtime';
import { initPluginTranslations } from '@grafana/i18n';
import { sceneGraph } from '@grafana/scenes';
import { catchError, map, of } from 'rxjs';

import { plugins } from './plugins.jsx';
import { Prometheus } from './prometheus.js';

// The settings that every field has; editors are for those who edit.
function fieldSettings() {
  const setting = (id, process, more = {}) => ({
    id,
    path: id,
    name: id,
    description: '',
    editor: () => null,
    override: () => null,
    process,
    settings: {},
    shouldApply: () => true,
    ...more,
  });
  return [
    setting('unit', unitOverrideProcessor),
    setting('min', numberOverrideProcessor),
    setting('max', numberOverrideProcessor),
    setting('decimals', numberOverrideProcessor),
    setting('displayName', displayNameOverrideProcessor),
    setting('noValue', stringOverrideProcessor),
    setting('color', identityOverrideProcessor, { defaultValue: { mode: FieldColorModeId.Thresholds } }),
    setting('thresholds', thresholdsOverrideProcessor),
    setting('mappings', valueMappingsOverrideProcessor),
    setting('links', dataLinksOverrideProcessor),
  ];
}

function runRequest(datasource, request) {
  const panel = (more) => ({ series: [], annotations: [], request, timeRange: request.range, ...more });
  return datasource.query(request).pipe(
    map((response) => panel({ state: LoadingState.Done, series: response.data })),
    catchError((error) => of(panel({ state: LoadingState.Error, error: { message: String(error.message) } })))
  );
}

function dataSources(url) {
  const settings = { uid: 'prometheus', name: 'Prometheus', type: 'prometheus', isDefault: true, meta: { id: 'prometheus', info: {} } };
  const source = new Prometheus({ ...settings, url, jsonData: {} });
  return {
    get: async () => source,
    getList: () => [settings],
    getInstanceSettings: () => settings,
    reload: () => {},
  };
}

export async function start(url, mode) {
  await initPluginTranslations('grafana');
  config.theme2 = createTheme({ colors: { mode } });
  standardFieldConfigEditorRegistry.setInit(fieldSettings);
  // Some stand there under two names.
  const transformers = new Map(Object.values(standardTransformers).map((one) => [one.id, one]));
  standardTransformersRegistry.setInit(() =>
    [...transformers.values()].map((one) => ({ id: one.id, name: one.name, transformation: async () => one, editor: () => null }))
  );
  locationUtil.initialize({ config, getVariablesUrlParams: () => ({}), getTimeRangeForUrl: () => ({}) });
  setAppEvents(new EventBusSrv());
  setRunRequest(runRequest);
  setDataSourceSrv(dataSources(url));
  setTemplateSrv({
    getVariables: () => [],
    containsTemplate: (text) => text.includes('$'),
    updateTimeRange: () => {},
    replace: (text, scopedVars, format) =>
      scopedVars?.__sceneObject ? sceneGraph.interpolate(scopedVars.__sceneObject.value.valueOf(), text, scopedVars, format) : text,
  });
  setPluginImportUtils({
    importPanelPlugin: async (id) => plugins[id],
    getPanelPluginFromCache: (id) => plugins[id],
  });
  return config.theme2;
}
