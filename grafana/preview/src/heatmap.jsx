// A row of cells for each series, the first one on top; the colour is the value's, from 0 to the panel's maximum.

import { FieldType, formattedValueToString, getFieldDisplayName, getValueFormat } from '@grafana/data';
import { useTheme2 } from '@grafana/ui';
import { interpolateCividis } from 'd3-scale-chromatic';
import { useEffect, useRef } from 'react';

import { Empty, isEmpty } from './empty.jsx';

const BELOW = 44;
const BESIDE = 26;
const LETTER = 6.5;

function rowsOf(data) {
  return data.series.map((frame) => ({
    name: getFieldDisplayName(frame.fields.find((field) => field.type === FieldType.number), frame, data.series),
    times: frame.fields.find((field) => field.type === FieldType.time).values,
    values: frame.fields.find((field) => field.type === FieldType.number).values,
  }));
}

function draw(canvas, rows, range, options, largest) {
  const scale = window.devicePixelRatio;
  const context = canvas.getContext('2d');
  context.clearRect(0, 0, canvas.width, canvas.height);
  const [from, to] = [range.from.valueOf(), range.to.valueOf()];
  const tall = canvas.height / rows.length;
  const steps = options.color.steps;
  rows.forEach(({ times, values }, row) => {
    const place = options.yAxis.reverse ? row : rows.length - 1 - row;
    const wide = times.length > 1 ? times[1] - times[0] : to - from;
    values.forEach((value, column) => {
      if (value === null || Number.isNaN(value)) {
        return;
      }
      const share = Math.round((steps * value) / largest) / steps;
      const left = ((times[column] - wide - from) / (to - from)) * canvas.width;
      context.fillStyle = interpolateCividis(Math.min(share, 1));
      const width = Math.ceil((wide / (to - from)) * canvas.width + scale);
      context.fillRect(Math.floor(left), Math.floor(place * tall), width, Math.ceil(tall));
    });
  });
}

function Names({ rows, height, reverse }) {
  const every = Math.ceil((rows.length * 14) / height);
  const placed = reverse ? rows : [...rows].reverse();
  return placed.map(({ name }, row) =>
    row % every === 0 ? (
      <div key={name} style={{ position: 'absolute', right: 6, top: ((row + 0.5) / rows.length) * height - 7, lineHeight: '14px', whiteSpace: 'nowrap' }}>
        {name}
      </div>
    ) : null
  );
}

function Scale({ left, largest, format }) {
  const shown = (share) => formattedValueToString(format(share * largest, 2));
  const colours = [...Array(24).keys()].map((step) => interpolateCividis(step / 23));
  return (
    <div style={{ display: 'flex', alignItems: 'center', gap: 6, marginLeft: left }}>
      {shown(0)}
      <div style={{ width: 200, height: 8, background: `linear-gradient(90deg, ${colours.join(',')})` }} />
      {shown(1)}
    </div>
  );
}

export function HeatMap({ data, options, fieldConfig, width, height, timeRange }) {
  const theme = useTheme2();
  const canvas = useRef(null);
  const empty = isEmpty(data);
  const rows = empty ? [] : rowsOf(data);
  const largest = options.color.max;
  const left = BESIDE + LETTER * Math.max(0, ...rows.map(({ name }) => name.length));
  const [wide, tall] = [width - left, height - BELOW];
  useEffect(() => {
    if (canvas.current) {
      draw(canvas.current, rows, timeRange, options, largest);
    }
  });
  if (empty) {
    return <Empty fieldConfig={fieldConfig} width={width} height={height} />;
  }
  const clock = (time) => new Date(time).toISOString().slice(11, 16);
  const [from, to] = [timeRange.from.valueOf(), timeRange.to.valueOf()];
  const scale = window.devicePixelRatio;
  return (
    <div data-testid="heatmap" data-rows={rows.map(({ name }) => name).join(' ')} style={{ fontSize: 11, color: theme.colors.text.secondary }}>
      <div style={{ position: 'relative', height: tall }}>
        <div style={{ position: 'absolute', width: left, height: tall }}>
          <Names rows={rows} height={tall} reverse={options.yAxis.reverse} />
          <div style={{ position: 'absolute', left: -6, top: tall / 2, transform: 'rotate(-90deg)', width: 24, textAlign: 'center' }}>{options.yAxis.axisLabel}</div>
        </div>
        <canvas ref={canvas} width={wide * scale} height={tall * scale} style={{ position: 'absolute', left, width: wide, height: tall }} />
      </div>
      <div style={{ display: 'flex', justifyContent: 'space-between', margin: `3px 0 6px ${left}px` }}>
        {[0, 0.25, 0.5, 0.75, 1].map((part) => (
          <span key={part}>{clock(from + part * (to - from))}</span>
        ))}
      </div>
      <Scale left={left} largest={largest} format={getValueFormat(options.cellValues.unit)} />
    </div>
  );
}
