// A data source for Prometheus, as far as the dashboards use one: queries over time and at its end, tables, label_values
// and annotations. Grafana's own is not under a licence that lets this page use it.

import { DataSourceApi, FieldType, LoadingState, toDataFrame } from '@grafana/data';
import { getTemplateSrv } from '@grafana/runtime';
import { from, of } from 'rxjs';

const SCRAPE_SECONDS = 15;

const escaped = (text) => text.replace(/\\/g, '\\\\').replace(/"/g, '\\"');
const regex = (text) => escaped(text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'));

// A value of several is a regular expression; of one it is text.
function format(value, variable) {
  if (!variable.multi && !variable.includeAll) {
    return escaped(String(value));
  }
  const values = Array.isArray(value) ? value.map(regex) : [regex(value)];
  return values.length === 1 ? values[0] : `(${values.join('|')})`;
}

function named(legend, labels) {
  return legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '');
}

export class Prometheus extends DataSourceApi {
  constructor(settings) {
    super(settings);
    this.url = settings.url;
    this.annotations = {
      prepareAnnotation: (annotation) => annotation,
      prepareQuery: ({ expr }) => ({ refId: 'Anno', expr }),
      processEvents: (annotation, frames) => of(frames.map((frame) => event(annotation, frame))),
    };
  }

  async ask(path, parameters) {
    const response = await fetch(`${this.url}/api/v1/${path}`, { method: 'POST', body: new URLSearchParams(parameters) });
    const answer = await response.json();
    if (answer.status !== 'success') {
      throw new Error(answer.error);
    }
    return answer.data;
  }

  query(request) {
    return from(this.frames(request).then((data) => ({ data, state: LoadingState.Done })));
  }

  async frames(request) {
    const seconds = Math.round((request.range.to.valueOf() - request.range.from.valueOf()) / 1000);
    const step = Math.max(Math.ceil(request.intervalMs / 1000), SCRAPE_SECONDS);
    const scopedVars = {
      ...request.scopedVars,
      __range: { value: `${seconds}s` },
      __rate_interval: { value: `${Math.max(step + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS)}s` },
    };
    const targets = request.targets.filter((target) => !target.hide);
    const answers = await Promise.all(targets.map((target) => this.answer(target, request.range, step, scopedVars)));
    const several = answers.filter((answer) => answer.result.length > 0).length > 1;
    return answers.flatMap(({ target, result, legend }) =>
      target.format === 'table' ? table(target, result, several) : result.map((one) => series(target, one, legend, step))
    );
  }

  async answer(target, range, step, scopedVars) {
    const templates = getTemplateSrv();
    const query = templates.replace(target.expr, scopedVars, format);
    const legend = templates.replace(target.legendFormat ?? '', scopedVars);
    const [begin, end] = [range.from.valueOf() / 1000, range.to.valueOf() / 1000];
    const data = target.instant
      ? await this.ask('query', { query, time: end })
      : await this.ask('query_range', { query, start: Math.ceil(begin / step) * step, end, step });
    return { target, legend, result: data.result };
  }

  async metricFindQuery(query, options) {
    const text = getTemplateSrv().replace(query.query, options.scopedVars, format);
    const [, match, label] = /^label_values\((.+), (\w+)\)$/.exec(text);
    const [start, end] = [options.range.from.valueOf() / 1000, options.range.to.valueOf() / 1000];
    const parameters = new URLSearchParams({ 'match[]': match, start, end });
    const response = await fetch(`${this.url}/api/v1/label/${label}/values?${parameters}`);
    return (await response.json()).data.map((value) => ({ text: value, value }));
  }

  async testDatasource() {
    return { status: 'success', message: '' };
  }
}

// Points of a series that follow one another are one event, from the first to the last.
function event(annotation, frame) {
  const [times, values] = frame.fields;
  return {
    time: times.values[0],
    timeEnd: times.values[times.values.length - 1],
    isRegion: true,
    title: named(annotation.titleFormat, values.labels),
    text: named(annotation.textFormat, values.labels),
    color: annotation.iconColor,
  };
}

function series(target, { metric, value, values }, legend, step) {
  const points = values ?? [value];
  return toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: points.map(([time]) => time * 1000), config: { interval: step * 1000 } },
      {
        name: 'Value',
        type: FieldType.number,
        values: points.map(([, text]) => Number(text)),
        labels: metric,
        config: { displayNameFromDS: named(legend, metric) },
      },
    ],
  });
}

function table(target, result, several) {
  if (result.length === 0) {
    return [];
  }
  const labels = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))].sort();
  return [
    toDataFrame({
      refId: target.refId,
      fields: [
        { name: 'Time', type: FieldType.time, values: result.map(({ value }) => value[0] * 1000) },
        ...labels.map((label) => ({
          name: label,
          type: FieldType.string,
          values: result.map(({ metric }) => metric[label] ?? null),
        })),
        {
          name: several ? `Value #${target.refId}` : 'Value',
          type: FieldType.number,
          values: result.map(({ value }) => Number(value[1])),
        },
      ],
    }),
  ];
}
