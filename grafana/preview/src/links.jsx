// Links to other dashboards, with what is looked at.

import { sceneGraph, sceneUtils } from '@grafana/scenes';
import { useTheme2 } from '@grafana/ui';

export function Links({ board, shown }) {
  const theme = useTheme2();
  sceneGraph.getTimeRange(shown).useState();
  sceneGraph.getVariables(shown).useState();
  const href = ({ url, keepTime, includeVars }) => {
    const parameters = new URLSearchParams();
    const state = sceneUtils.getUrlState(shown);
    for (const [name, value] of Object.entries(state)) {
      const wanted = name.startsWith('var-') ? includeVars : keepTime;
      for (const one of wanted ? [value].flat() : []) {
        parameters.append(name, one);
      }
    }
    return `${url}?${parameters}`;
  };
  return (
    <span style={{ display: 'flex', gap: 12, marginLeft: 'auto' }}>
      {board.links.map((link) => (
        <a key={link.title} data-testid="board-link" href={href(link)} style={{ color: theme.colors.text.link }}>
          {link.title}
        </a>
      ))}
    </span>
  );
}
