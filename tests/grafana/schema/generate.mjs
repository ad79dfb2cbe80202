// Writes the JSON schemas beside this file: node generate.mjs
//
// Grafana publishes the model of a dashboard and of its panels' options as TypeScript, in the npm package
// @grafana/schema. What a dashboard, a target and the options and field settings of each kind of panel may hold is taken
// from there, once for each version that the dashboards are to be imported by. Needs npm and its registry.

import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const VERSIONS = { 10: '10.4.19', 11: '11.6.0', 12: '12.4.2' };
const GENERATOR = ['ts-json-schema-generator@2.4.0', 'typescript@5.8.3'];
const PANELS = { stat: 'Stat', timeseries: 'TimeSeries', table: 'Table', barchart: 'BarChart', heatmap: 'Heatmap' };

// Where a version keeps its types.
function dashboardTypes(root) {
  const places = ['dist/types/raw/dashboard/x/types.gen', 'dist/esm/raw/dashboard/x/dashboard_types.gen'];
  return places.find((place) => existsSync(join(root, `${place}.d.ts`)));
}

function panelTypes(root, kind) {
  const places = [
    `dist/types/raw/composable/${kind}/panelcfg/x/types.gen`,
    `dist/esm/raw/composable/${kind}/panelcfg/x/${PANELS[kind]}PanelCfg_types.gen`,
  ];
  return places.find((place) => existsSync(join(root, `${place}.d.ts`)));
}

// The types that are wanted, by the name they get. Each is made a file of its own, since panels name theirs alike.
function wanted(root) {
  const types = { dashboard: [dashboardTypes(root), 'Dashboard'] };
  for (const kind of Object.keys(PANELS)) {
    types[`${kind}Options`] = [panelTypes(root, kind), 'Options'];
    if (kind !== 'stat') {
      types[`${kind}Custom`] = [panelTypes(root, kind), 'FieldConfig'];
    }
  }
  return types;
}

function schemaOf(directory, types, type) {
  const source = `export interface Wanted extends Original {}\nimport type { ${type} as Original } from '${types}';\n`;
  writeFileSync(join(directory, 'types.ts'), source);
  const command = ['--path', 'types.ts', '--tsconfig', 'tsconfig.json', '--type', 'Wanted', '--no-type-check'];
  const tool = join(directory, 'node_modules/.bin/ts-json-schema-generator');
  const text = execFileSync(tool, [...command, '--no-top-ref', '--jsDoc', 'none'], { cwd: directory });
  return JSON.parse(text.toString());
}

function generate(major, version) {
  const directory = mkdtempSync(join(tmpdir(), 'grafana-schema-'));
  try {
    writeFileSync(join(directory, 'package.json'), '{"private": true}');
    const npm = ['install', '--no-audit', '--no-fund', '--ignore-scripts', '--silent', `@grafana/schema@${version}`];
    execFileSync('npm', [...npm, ...GENERATOR], { cwd: directory, stdio: 'inherit' });
    const options = { target: 'es2022', module: 'esnext', moduleResolution: 'bundler', skipLibCheck: true };
    writeFileSync(join(directory, 'tsconfig.json'), JSON.stringify({ compilerOptions: options, include: ['types.ts'] }));
    const schema = { $comment: `@grafana/schema ${version} (Apache-2.0), by generate.mjs` };
    const types = wanted(join(directory, 'node_modules/@grafana/schema'));
    for (const [name, [place, type]] of Object.entries(types)) {
      schema[name] = schemaOf(directory, `./node_modules/@grafana/schema/${place}`, type);
    }
    const file = join(dirname(fileURLToPath(import.meta.url)), `grafana-${major}.json`);
    writeFileSync(file, JSON.stringify(schema, null, 1) + '\n');
  } finally {
    rmSync(directory, { recursive: true });
  }
}

for (const [major, version] of Object.entries(VERSIONS)) {
  generate(major, version);
}
