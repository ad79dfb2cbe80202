// Opens every dashboard for every kind of run in a headless Chromium, asserts what is on the page, and keeps a picture.
// Started by preview.py, which tells where the page and Prometheus are. BROWSER is the program, /usr/bin/chromium if unset.

import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { chromium } from 'playwright-core';

const { page: address, prometheus, from, to, runs, ranks: size } = JSON.parse(process.env.PREVIEW);
const EXECUTABLE = process.env.BROWSER ?? '/usr/bin/chromium';
const PICTURES = 'screenshots';
const WAIT = 120_000;
const BREACH = '#D55E00';
const GOOD = '#0072B2';

// What a person must be able to read off, by kind of run.
const ALL_KINDS = {
  balanced: { state: /^BALANCED$/, colour: GOOD, exits: ['met', 'met'] },
  'input-straggler': {
    state: /^INPUT STRAGGLER$/,
    colour: BREACH,
    rank: 11,
    host: 'gpu-i-2',
    phase: 'input_ready',
    shard: /^train-0002[23]$/,
    alert: 'TrainingInputStraggler',
    exits: ['not met', 'not met'],
  },
  'compute-straggler': {
    state: /^COMPUTE STRAGGLER$/,
    colour: BREACH,
    rank: 6,
    host: 'gpu-c-1',
    phase: 'backward',
    shard: /^train-0001[23]$/,
    alert: 'TrainingComputeStraggler',
    exits: ['met', 'met'],
  },
  rotating: { state: /^ROTATING STRAGGLERS$/, colour: BREACH, alert: 'TrainingRotatingStragglers', exits: ['met', 'not met'] },
};
const KINDS = Object.fromEntries(Object.entries(ALL_KINDS).filter(([run]) => runs.includes(run)));
const BOARDS = ['rank-exporter-stragglers', 'rank-exporter-rank', 'rank-exporter-hosts-shards', 'rank-exporter-fleet'];

const panelOf = (page, title) => page.locator('section', { has: page.locator(`h2[title="${title}"], h6[title="${title}"]`) }).first();

async function numbers(page, title) {
  const found = panelOf(page, title).locator('[data-testid=number]');
  return found.evaluateAll((all) => all.map(({ dataset, innerText }) => ({ ...dataset, shown: innerText })));
}

async function rows(page, title) {
  const found = panelOf(page, title).locator('[role=row]');
  return found.evaluateAll((all) =>
    all.map((row) => [...row.querySelectorAll('[role=gridcell]')].map((cell) => cell.innerText.trim())).filter((row) => row.length)
  );
}

async function open(browser, board, run, more = {}) {
  const page = await browser.newPage({ viewport: { width: 1600, height: 900 } });
  const faults = [];
  page.on('pageerror', (error) => faults.push(String(error)));
  const asked = new URLSearchParams({ board, prometheus, from, to, 'var-run': run, ...more });
  await page.goto(`${address}/?${asked}`, { timeout: WAIT });
  await page.locator('section').first().waitFor({ timeout: WAIT });
  await page.waitForLoadState('networkidle', { timeout: WAIT });
  const height = await page.evaluate(() => document.documentElement.scrollHeight);
  await page.setViewportSize({ width: 1600, height });
  await page.waitForLoadState('networkidle', { timeout: WAIT });
  assert.deepEqual(faults, [], `${board} of ${run}`);
  return page;
}

// What holds for every page, whatever it shows.
async function sound(page, where) {
  const text = await page.innerText('body');
  assert.doesNotMatch(text, /unexpected error|\$\{|\$__|undefined|NaN/i, where);
  const shown = await page.locator('[data-testid=number]').evaluateAll((all) => all.map((one) => one.innerText));
  for (const number of shown.filter((one) => /\d/.test(one))) {
    assert.match(number, /[%a-zA-Z]/, `${where}: a number without a unit`);
  }
  const places = await page.locator('section').evaluateAll((all) => all.map((one) => one.getBoundingClientRect().toJSON()));
  places.forEach((one, number) =>
    places.slice(number + 1).forEach((other) => {
      const apart = one.right <= other.left || other.right <= one.left || one.bottom <= other.top || other.bottom <= one.top;
      assert.ok(apart, `${where}: panels overlap`);
    })
  );
  for (const href of await page.locator('[data-testid=board-link]').evaluateAll((all) => all.map((one) => one.href))) {
    for (const part of ['from=', 'to=', 'var-datasource=', 'var-cluster=', 'var-namespace=']) {
      assert.ok(href.includes(part), `${where}: ${href} loses ${part}`);
    }
  }
}

async function overview(page, run, kind) {
  const [state] = await numbers(page, 'State');
  assert.match(state.text, kind.state, run);
  assert.equal(state.color, kind.colour, run);
  const [skew] = await numbers(page, 'Worst rank, of a step');
  assert.equal(skew.title, `${kind.rank === undefined ? 'within' : 'over'} the budget of 10 %`, run);
  assert.equal(skew.color, kind.rank === undefined ? GOOD : BREACH, run);
  const lights = [...(await numbers(page, 'Exit 1: input is even')), ...(await numbers(page, 'Exit 2: no wait for input'))];
  assert.deepEqual(lights.map(({ title }) => title), kind.exits, run);
  const ranks = await panelOf(page, 'Input-ready time by rank, of a step').locator('[data-testid=heatmap]').getAttribute('data-rows');
  assert.equal(ranks, [...Array(size).keys()].join(' '), run);
  if (kind.alert) {
    const graph = panelOf(page, 'Lateness of the worst rank, of a step').locator(`[data-testid=graph][data-alerts~=${kind.alert}]`);
    await graph.waitFor({ timeout: WAIT });
    const alerts = await rows(page, 'Alerts and next checks');
    assert.ok(alerts.some(([name, is]) => name === kind.alert && is === 'firing'), run);
    const runbook = panelOf(page, 'Alerts and next checks').locator('a', { hasText: kind.alert }).first();
    assert.match(await runbook.getAttribute('href'), new RegExp(`/rules/runbooks/${kind.alert}\\.md$`));
  }
  if (kind.rank !== undefined) {
    await culprit(page, run, kind);
  }
}

async function culprit(page, run, kind) {
  const [worst] = await numbers(page, 'Worst rank');
  const [rank, phase, host, shard] = worst.title.split(' · ');
  assert.deepEqual([rank, phase, host], [`rank ${kind.rank}`, kind.phase, kind.host], run);
  assert.match(shard, kind.shard, run);
  const [first] = await rows(page, 'Worst ranks');
  assert.deepEqual(first.slice(0, 3), [String(kind.rank), kind.phase, kind.host], run);
  const links = await panelOf(page, 'Worst ranks').locator('a').evaluateAll((all) => all.slice(0, 3).map((one) => one.getAttribute('href')));
  const [toRank, toHost, toShard] = links.map((href) => new URL(href, 'http://grafana'));
  assert.equal(toRank.pathname, '/d/rank-exporter-rank');
  assert.equal(toRank.searchParams.get('var-rank'), String(kind.rank));
  assert.equal(toHost.searchParams.get('var-host'), kind.host);
  assert.match(toShard.searchParams.get('var-shard'), kind.shard);
  for (const link of [toRank, toHost, toShard]) {
    assert.equal(link.searchParams.get('var-run'), run);
    assert.equal(new Date(link.searchParams.get('from')).valueOf(), from, link.href);
    assert.ok(link.searchParams.get('to') && link.searchParams.get('var-datasource'), link.href);
  }
  const bars = panelOf(page, 'Where a step goes: median rank and worst rank').locator('[data-testid=bar]');
  assert.deepEqual(await bars.evaluateAll((all) => all.map(({ dataset }) => dataset.name)), ['median rank', `rank ${kind.rank}`]);
  const of = (bar, part) => bars.nth(bar).locator(`[data-phase=${part}]`).getAttribute('data-value').then(Number);
  assert.ok((await of(1, kind.phase)) > 1.2 * (await of(0, kind.phase)), run);
  assert.ok((await of(1, 'collective_wait')) < 0.5 * (await of(0, 'collective_wait')), run);
}

const CHECKS = {
  'rank-exporter-stragglers': overview,
  'rank-exporter-rank': async (page, run, kind) => {
    const [late] = await numbers(page, 'Later than the median rank, of a step');
    assert.equal(late.title.startsWith('over'), kind.rank !== undefined, run);
  },
  'rank-exporter-hosts-shards': async (page, run, kind) => {
    const [[host]] = await rows(page, 'By host');
    if (kind.host) {
      assert.equal(host, kind.host, run);
    }
  },
  'rank-exporter-fleet': async (page) => {
    const runs = (await rows(page, 'Runs by cost')).map(([run]) => run);
    assert.deepEqual([...runs].sort(), [...Object.keys(KINDS), 'just-begun'].sort());
    const href = await panelOf(page, 'Runs by cost').locator('a').first().getAttribute('href');
    assert.match(href, new RegExp(`^/d/rank-exporter-stragglers\\?.*var-run=${runs[0]}$`));
  },
};

async function look(browser, board, run, kind) {
  const page = await open(browser, board, run, { 'var-rank': String(kind.rank ?? 0) });
  await sound(page, `${board} of ${run}`);
  await CHECKS[board](page, run, kind);
  await page.screenshot({ path: `${PICTURES}/${board}-${run}${size === 16 ? '' : `-${size}`}.png` });
  console.log(`${board} of ${run}: as it should be`);
  await page.close();
}

// A run that has too few steps is told of in words, in every panel that has nothing to show.
async function beginning(browser) {
  const page = await open(browser, 'rank-exporter-stragglers', 'just-begun');
  await page.screenshot({ path: `${PICTURES}/rank-exporter-stragglers-just-begun.png` });
  const text = await page.innerText('body');
  assert.match(text, /Not judged yet: 30 minutes hold fewer than some 20 steps/);
  assert.match(text, /Too few steps yet/);
  assert.match(text, /Steps are not aligned/);
  console.log('a run that has just begun: said in words');
}

mkdirSync(PICTURES, { recursive: true });
const browser = await chromium.launch({ executablePath: EXECUTABLE, args: ['--no-sandbox'] });
let failed = 0;
const visits = BOARDS.flatMap((board) => (board === 'rank-exporter-fleet' ? ['input-straggler'] : Object.keys(KINDS)).map((run) => [board, run]));
for (const visit of [...visits.map(([board, run]) => () => look(browser, board, run, KINDS[run])), () => beginning(browser)]) {
  await visit().catch((error) => {
    failed += 1;
    console.error(error.message);
  });
}
await browser.close();
process.exit(failed ? 1 : 0);
