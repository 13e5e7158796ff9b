// SPDX-License-Identifier: BSD-3-Clause
import type { ITranslation } from '../../labextension/src/core/translation';

/** Fills in texts without translating them: the page and its service are in English. */
export const english: ITranslation = {
  __: (text, ...args) => fill(text, args),
  _n: (singular, plural, n, ...args) =>
    fill(n === 1 ? singular : plural, [n, ...args])
};

function fill(text: string, args: readonly unknown[]): string {
  return text.replace(/%(\d+)/g, (_, number) =>
    String(args[Number(number) - 1])
  );
}
