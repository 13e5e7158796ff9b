// SPDX-License-Identifier: BSD-3-Clause

// These come as ES modules, which Jest's CommonJS cannot read as they are.
const MODULES = [
  '@jupyter',
  '@jupyterlab',
  '@microsoft',
  '@rjsf',
  'exenv-es6',
  'lib0',
  'nanoid',
  'vscode-ws-jsonrpc',
  'y-protocols',
  'y-websocket',
  'yjs'
];

module.exports = {
  testEnvironment: 'jsdom',
  roots: ['<rootDir>/src', '<rootDir>/../hub/page'],
  testMatch: ['**/__tests__/**/*.spec.{ts,tsx}'],
  // The page of the Hub has no packages of its own.
  modulePaths: ['<rootDir>/node_modules'],
  setupFiles: ['<rootDir>/jest.setup.js'],
  // Ends what hangs. A machine that is merely slow takes the time that it takes.
  testTimeout: 300_000,
  transform: { '\\.[jt]sx?$': '<rootDir>/jest.transform.js' },
  transformIgnorePatterns: [`/node_modules/(?!(${MODULES.join('|')})/)`],
  moduleNameMapper: {
    '\\.css$': '<rootDir>/src/__tests__/empty.ts',
    '\\.svg$': '<rootDir>/src/__tests__/picture.ts'
  }
};
