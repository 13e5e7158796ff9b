// SPDX-License-Identifier: BSD-3-Clause
import js from '@eslint/js';
import prettier from 'eslint-config-prettier';
import react from 'eslint-plugin-react';
import reactHooks from 'eslint-plugin-react-hooks';
import tseslint from 'typescript-eslint';

export default tseslint.config(
  { ignores: ['**/lib/', '**/node_modules/'] },
  js.configs.recommended,
  {
    files: ['**/src/**/*.{ts,tsx}', '**/hub/page/**/*.{ts,tsx}'],
    extends: [
      ...tseslint.configs.recommendedTypeChecked,
      react.configs.flat.recommended,
      reactHooks.configs['recommended-latest']
    ],
    languageOptions: {
      parserOptions: {
        // One program for all files: `projectService` reads the types of JupyterLab for each tsconfig.json again.
        project: ['tsconfig.check.json'],
        tsconfigRootDir: import.meta.dirname
      }
    },
    settings: { react: { version: '18.2' } },
    rules: {
      curly: ['error', 'all'],
      eqeqeq: 'error',
      'prefer-arrow-callback': 'error',
      '@typescript-eslint/explicit-function-return-type': [
        'error',
        { allowExpressions: true }
      ],
      // JupyterLab's ways: options in a namespace, slots connected with their object.
      '@typescript-eslint/no-namespace': 'off',
      '@typescript-eslint/unbound-method': 'off',
      '@typescript-eslint/naming-convention': [
        'error',
        {
          selector: 'interface',
          format: ['PascalCase'],
          custom: { regex: '^I[A-Z]', match: true }
        }
      ]
    }
  },
  {
    files: ['**/*.js'],
    languageOptions: {
      sourceType: 'commonjs',
      globals: {
        __dirname: 'readonly',
        globalThis: 'readonly',
        module: 'writable',
        MouseEvent: 'readonly',
        navigator: 'readonly',
        require: 'readonly',
        setTimeout: 'readonly'
      }
    }
  },
  {
    files: ['**/*.mjs'],
    languageOptions: { globals: { URL: 'readonly' } }
  },
  prettier
);
