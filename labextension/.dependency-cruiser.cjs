// SPDX-License-Identifier: BSD-3-Clause

// Which sources may import which; imports of types count.
module.exports = {
  forbidden: [
    {
      name: 'no-circle',
      comment: 'Files that import each other can only be read together.',
      severity: 'error',
      from: {},
      to: { circular: true }
    },
    {
      name: 'core-stands-alone',
      comment: 'The page of the Hub uses core/, too, and has no JupyterLab.',
      severity: 'error',
      from: { path: '^src/core/', pathNot: '/__tests__/' },
      to: { pathNot: '^src/core/|/@lumino/' }
    },
    {
      name: 'words-need-only-core',
      comment: 'The page of the Hub uses words/, too, and has no JupyterLab.',
      severity: 'error',
      from: { path: '^src/words/', pathNot: '/__tests__/' },
      to: { pathNot: '^src/(core|words)/' }
    },
    {
      name: 'plugins-are-on-top',
      comment: 'Plugins put the parts together; no part knows them.',
      severity: 'error',
      from: { pathNot: '^src/(index[.]ts$|plugins/)' },
      to: { path: '^src/plugins/' }
    },
    {
      name: 'no-import-of-tests',
      severity: 'error',
      from: { pathNot: '/__tests__/' },
      to: { path: '/__tests__/' }
    },
    {
      name: 'hub-page-needs-core-and-words',
      comment: 'The page of the Hub has no JupyterLab.',
      severity: 'error',
      from: { path: '^[.][.]/hub/page/' },
      to: { path: '^src/', pathNot: '^src/(core|words)/' }
    },
    {
      name: 'no-unresolvable',
      comment: 'The packages of the Hub page are found by its build alone.',
      severity: 'error',
      from: { path: '^src/' },
      to: { couldNotResolve: true, pathNot: '[.]svg$' }
    }
  ],
  options: {
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    doNotFollow: { path: 'node_modules' }
  }
};
