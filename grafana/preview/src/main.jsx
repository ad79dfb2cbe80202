// Opens a dashboard: ?board=NAME&prometheus=URL&from=MS&to=MS&theme=dark&var-NAME=VALUE

import { ThemeContext } from '@grafana/data';
import { GlobalStyles, PortalContainer } from '@grafana/ui';
import { createRoot } from 'react-dom/client';
import { MemoryRouter } from 'react-router-dom';

import { Links } from './links.jsx';
import { start } from './runtime.jsx';
import { scene } from './scene.jsx';

const asked = new URLSearchParams(window.location.search);

function chosen() {
  return Object.fromEntries([...asked].filter(([key]) => key.startsWith('var-')).map(([key, value]) => [key.slice(4), value]));
}

function Page({ board, shown, theme }) {
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <MemoryRouter>
        <div style={{ padding: 16, minHeight: '100vh', boxSizing: 'border-box', background: theme.colors.background.canvas }}>
          <div style={{ display: 'flex', alignItems: 'baseline', gap: 24, paddingBottom: 8, color: theme.colors.text.primary }}>
            <span style={{ fontSize: 20 }}>{board.title}</span>
            <span style={{ color: theme.colors.text.secondary }}>{board.description}</span>
            <Links board={board} shown={shown} />
          </div>
          <shown.Component model={shown} />
        </div>
        <PortalContainer />
      </MemoryRouter>
    </ThemeContext.Provider>
  );
}

async function open() {
  const theme = await start(asked.get('prometheus'), asked.get('theme') ?? 'dark');
  const response = await fetch(`/dashboards/${asked.get('board')}.json`);
  const board = await response.json();
  const time = (name) => new Date(Number(asked.get(name))).toISOString();
  const shown = scene(board, { from: time('from'), to: time('to'), chosen: chosen() });
  createRoot(document.getElementById('root')).render(<Page board={board} shown={shown} theme={theme} />);
}

open();
