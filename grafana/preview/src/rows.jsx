// A table.

import { getFieldDisplayName } from '@grafana/data';
import { TableNG } from '@grafana/ui/unstable';

import { Empty, isEmpty } from './empty.jsx';

export function Rows({ data, options, fieldConfig, width, height, timeRange }) {
  if (isEmpty(data)) {
    return <Empty fieldConfig={fieldConfig} width={width} height={height} />;
  }
  const [frame] = data.series;
  // Columns are headed by the names that transformations gave them, once these have been asked for.
  frame.fields.forEach((field) => getFieldDisplayName(field, frame, data.series));
  return <TableNG data={frame} width={width} height={height} cellHeight={options.cellHeight} timeRange={timeRange} noHeader={false} />;
}
