// Stacked bars, one for each row, a part for each numeric column in the column's colour.

import { FieldType, formattedValueToString, getFieldDisplayName } from '@grafana/data';
import { useTheme2 } from '@grafana/ui';

import { Empty, isEmpty } from './empty.jsx';

const shown = (field, value) => formattedValueToString(field.display(value));

function Bar({ row, name, parts, whole }) {
  return (
    <div data-testid="bar" data-name={name} style={{ display: 'flex', alignItems: 'center', flex: 1, minHeight: 0 }}>
      <div style={{ width: 110, paddingRight: 8, textAlign: 'right' }}>{name}</div>
      <div style={{ display: 'flex', flex: 1, height: '70%' }}>
        {parts.map((field) => {
          const value = field.values[row] ?? 0;
          const colour = field.display(value).color;
          const title = `${field.name}: ${shown(field, value)}`;
          return (
            <div key={field.name} data-phase={field.name} data-value={value} title={title} style={{ width: `${(100 * value) / whole}%`, background: colour }} />
          );
        })}
      </div>
    </div>
  );
}

function Axis({ field, whole }) {
  const theme = useTheme2();
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => shown(field, part * whole));
  return (
    <div style={{ display: 'flex', justifyContent: 'space-between', marginLeft: 110, fontSize: 11, color: theme.colors.text.secondary }}>
      {ticks.map((tick) => (
        <span key={tick}>{tick}</span>
      ))}
    </div>
  );
}

export function Bars({ data, options, fieldConfig, width, height }) {
  const theme = useTheme2();
  if (isEmpty(data)) {
    return <Empty fieldConfig={fieldConfig} width={width} height={height} />;
  }
  const [frame] = data.series;
  const names = frame.fields.find((field) => getFieldDisplayName(field, frame) === options.xField);
  const parts = frame.fields.filter((field) => field.type === FieldType.number);
  const sum = (row) => parts.reduce((total, field) => total + (field.values[row] ?? 0), 0);
  const rows = [...names.values.keys()];
  const whole = Math.max(...rows.map(sum));
  return (
    <div style={{ width, height, display: 'flex', flexDirection: 'column', fontSize: 12 }}>
      {rows.map((row) => (
        <Bar key={row} row={row} name={names.values[row]} parts={parts} whole={whole} />
      ))}
      <Axis field={parts[0]} whole={whole} />
      <div style={{ display: 'flex', flexWrap: 'wrap', gap: 12, padding: '6px 0 0 110px', color: theme.colors.text.primary }}>
        {parts.map((field) => (
          <span key={field.name}>
            <span style={{ display: 'inline-block', width: 14, height: 4, marginRight: 5, verticalAlign: 'middle', background: field.display(0).color }} />
            {field.name}
          </span>
        ))}
      </div>
    </div>
  );
}
