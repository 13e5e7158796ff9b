// SPDX-License-Identifier: BSD-3-Clause

// Says how much every page loads, and how much the panel adds, gzipped; fails if it is
// too much. Run it after `jlpm build:prod`; `--json` for programs.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import { gzipSync } from 'node:zlib';

/** Bytes. */
const LIMITS = { start: 22_000, all: 150_000 };

const root = new URL('../jupyter_gpushare/labextension/', import.meta.url)
  .pathname;
const { _build: build } = JSON.parse(
  readFileSync(join(root, 'package.json'), 'utf8')
).jupyterlab;
const files = readdirSync(join(root, 'static')).filter(
  // JupyterLab does not load style.js of an extension whose `_build` names no style.
  name => name.endsWith('.js') && name !== 'style.js'
);
const entry = build.load.replace(/^static\//, '');

/** The chunks that the remote entry loads for what JupyterLab asks of it at start. */
function chunksAtStart() {
  const text = readFileSync(join(root, build.load), 'utf8');
  return [build.extension, build.style].filter(Boolean).flatMap(name => {
    // "./extension":()=>n.e(42).then(…), or Promise.all([n.e(42),n.e(43)]).then(…)
    const loads = text.match(
      new RegExp(`"${name.replace('.', '\\.')}":\\(\\)=>(.*?)\\.then\\(`)
    );
    const ids = [...(loads?.[1] ?? '').matchAll(/\.e\("?([\w-]+)"?\)/g)];
    if (ids.length === 0) {
      throw new Error(`${entry} does not say which chunks ${name} needs.`);
    }
    return ids.map(([, id]) => id);
  });
}

const start = new Set(chunksAtStart());
const sizes = files.map(name => ({
  name,
  start: name === entry || start.has(name.split('.')[0]),
  bytes: gzipSync(readFileSync(join(root, 'static', name)), { level: 9 }).length
}));
const sum = chosen => chosen.reduce((total, { bytes }) => total + bytes, 0);
const result = {
  start: sum(sizes.filter(({ start }) => start)),
  all: sum(sizes),
  files: sizes
};

if (process.argv.includes('--json')) {
  process.stdout.write(`${JSON.stringify(result)}\n`);
} else {
  for (const { name, start, bytes } of sizes.sort(
    (a, b) => b.start - a.start
  )) {
    process.stdout.write(
      `${String(bytes).padStart(7)}  ${start ? 'start' : 'later'}  ${name}\n`
    );
  }
  process.stdout.write(
    `${String(result.start).padStart(7)}  at start, of ${LIMITS.start}\n` +
      `${String(result.all).padStart(7)}  in all, with the panel, of ${LIMITS.all}\n`
  );
}
process.exitCode =
  result.start > LIMITS.start || result.all > LIMITS.all ? 1 : 0;
