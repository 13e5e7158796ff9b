// SPDX-License-Identifier: BSD-3-Clause

// Makes CommonJS of TypeScript and of ES modules with the compiler that also builds the Hub page, because ts-jest takes
// 20 seconds longer for all of them. `tsc` checks the types, also those of the tests.
const { experiments } = require('@rspack/core');

const options = filename => ({
  filename,
  jsc: {
    parser: /\.tsx?$/.test(filename)
      ? { syntax: 'typescript', tsx: filename.endsWith('x') }
      : { syntax: 'ecmascript' },
    target: 'es2020',
    transform: { react: { runtime: 'classic' } }
  },
  module: { type: 'commonjs' },
  sourceMaps: 'inline'
});

module.exports = {
  process: (source, filename) =>
    experiments.swc.transformSync(source, options(filename))
};
