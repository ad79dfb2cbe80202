// What a panel shows when there is nothing: the reason that the dashboard gives.

export function Empty({ fieldConfig, width, height }) {
  return (
    <div data-testid="empty" style={{ width, height, display: 'flex', alignItems: 'center', justifyContent: 'center', textAlign: 'center', opacity: 0.75 }}>
      {fieldConfig.defaults.noValue}
    </div>
  );
}

export function isEmpty(data) {
  return data.series.every((frame) => frame.length === 0);
}
