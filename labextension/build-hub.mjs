// SPDX-License-Identifier: BSD-3-Clause

// Builds the Hub's page: hub/page/ with the shared core becomes hub/static/page.js.
import { fileURLToPath } from 'node:url';
import process from 'node:process';
import { rspack } from '@rspack/core';

const pathOf = path => fileURLToPath(new URL(path, import.meta.url));

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
