// Large numbers, with names and colours as the panel has them.

import { getFieldDisplayValues } from '@grafana/data';
import { BigValue, BigValueTextMode, useTheme2, VizRepeater } from '@grafana/ui';

export function Numbers({ data, options, fieldConfig, width, height, replaceVariables, timeZone }) {
  const theme = useTheme2();
  const getValues = () =>
    getFieldDisplayValues({ fieldConfig, reduceOptions: options.reduceOptions, replaceVariables, theme, data: data.series, timeZone });
  const named = options.textMode === BigValueTextMode.ValueAndName;
  return (
    <VizRepeater
      getValues={getValues}
      source={data}
      renderCounter={0}
      width={width}
      height={height}
      itemSpacing={3}
      orientation={options.orientation}
      renderValue={({ value, width, height, count }) => (
        <div data-testid="number" data-title={value.display.title} data-text={value.display.text} data-color={value.display.color}>
          <BigValue
            value={value.display}
            width={width}
            height={height}
            theme={theme}
            text={options.text}
            colorMode={options.colorMode}
            graphMode={options.graphMode}
            justifyMode={options.justifyMode}
            textMode={named && count > 0 ? options.textMode : BigValueTextMode.Value}
          />
        </div>
      )}
    />
  );
}
