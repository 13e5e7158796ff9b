// SPDX-License-Identifier: BSD-3-Clause

// Builds the Hub's page: hub/page/ with the shared core becomes hub/static/page.js.
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import process from 'node:process';
import { WPPlugin } from '@jupyter/builder';
import { rspack } from '@rspack/core';

const pathOf = path => fileURLToPath(new URL(path, import.meta.url));

// Lumino's packages name their licence, but hold no text of it.
const bsd = readFileSync(pathOf('../LICENSE'), 'utf8').replace(
  /^Copyright .*$/m,
  'Copyright (c) Jupyter Development Team and PhosphorJS Contributors'
);

const compiler = rspack({
  mode: 'production',
  devtool: false,
  target: ['web', 'es2020'],
  entry: pathOf('../hub/page/main.tsx'),
  output: { path: pathOf('../hub/static'), filename: 'page.js' },
  resolve: {
    extensions: ['.ts', '.tsx', '.js'],
    // The page has no packages of its own.
    modules: [pathOf('node_modules')]
  },
  module: {
    rules: [
      {
        test: /\.tsx?$/,
        loader: 'builtin:swc-loader',
        options: {
          jsc: {
            parser: { syntax: 'typescript', tsx: true },
            transform: { react: { runtime: 'classic' } },
            target: 'es2020'
          }
        }
      }
    ]
  },
  optimization: {
    minimizer: [
      new rspack.SwcJsMinimizerRspackPlugin({
        // React's licence asks for its notice in every copy.
        extractComments: false,
        minimizerOptions: { format: { comments: 'some' } }
      })
    ]
  },
  // Licences ask for their text in every copy. hatch_build.py lists the packages in the wheel's SBOM.
  plugins: [
    new WPPlugin.JSONLicenseWebpackPlugin({
      licenseTextOverrides: {
        '@lumino/algorithm': bsd,
        '@lumino/coreutils': bsd
      }
    })
  ],
  performance: { hints: false }
});

compiler.run((error, stats) => {
  const failed = error ?? stats.hasErrors();
  process.stdout.write(
    `${error ? error.message : stats.toString({ preset: 'errors-warnings' })}\n`
  );
  compiler.close(() => {
    process.exitCode = failed ? 1 : 0;
  });
});
