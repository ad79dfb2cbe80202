// Lines over time, with the alerts that fired.

import { TimeSeries } from '@grafana/ui';

import { useLayoutEffect, useRef } from 'react';

import { Empty, isEmpty } from './empty.jsx';

// Each event is a frame's row; its span is shaded, and its beginning and end are lines.
function events(annotations) {
  return (annotations ?? []).flatMap((frame) => {
    const column = (name) => frame.fields.find((field) => field.name === name)?.values ?? [];
    return [...column('time')].map((time, row) => ({
      time,
      end: column('timeEnd')[row] ?? time,
      color: column('color')[row],
      title: column('title')[row],
    }));
  });
}

function draw(plot, marks) {
  const { ctx, bbox } = plot;
  const x = (time) => Math.min(Math.max(plot.valToPos(time, 'x', true), bbox.left), bbox.left + bbox.width);
  ctx.save();
  for (const { time, end, color } of marks) {
    ctx.fillStyle = `${color}1a`;
    ctx.fillRect(x(time), bbox.top, x(end) - x(time), bbox.height);
    ctx.strokeStyle = color;
    ctx.lineWidth = window.devicePixelRatio;
    ctx.setLineDash([4, 4]);
    ctx.beginPath();
    ctx.moveTo(x(time), bbox.top);
    ctx.lineTo(x(time), bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

// Alerts may come after the graph has been made, which is then drawn anew.
function Marks({ config, marks }) {
  const latest = useRef(marks);
  const plot = useRef(null);
  useLayoutEffect(() => {
    config.addHook('init', (made) => {
      plot.current = made;
    });
    config.addHook('draw', (drawn) => draw(drawn, latest.current));
  }, [config]);
  useLayoutEffect(() => {
    latest.current = marks;
    plot.current?.redraw(false);
  }, [marks]);
  return null;
}

export function Graph({ data, options, fieldConfig, width, height, timeRange, timeZone }) {
  const marks = events(data.annotations);
  if (isEmpty(data)) {
    return <Empty fieldConfig={fieldConfig} width={width} height={height} />;
  }
  return (
    <div data-testid="graph" data-alerts={[...new Set(marks.map(({ title }) => title))].join(' ')}>
      <TimeSeries
        frames={data.series}
        structureRev={data.structureRev}
        timeRange={timeRange}
        timeZone={timeZone}
        width={width}
        height={height}
        legend={options.legend}
        options={options}
      >
        {(config) => <Marks config={config} marks={marks} />}
      </TimeSeries>
    </div>
  );
}
