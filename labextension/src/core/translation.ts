// SPDX-License-Identifier: BSD-3-Clause

/** Translates texts: a bundle of JupyterLab, or English on a page without translations. */
export interface ITranslation {
  /** Translate a text and replace `%1`, `%2`, … by the arguments. */
  __(text: string, ...args: unknown[]): string;
  /** Translate a text that depends on a number, `%1`. */
  _n(singular: string, plural: string, n: number, ...args: unknown[]): string;
}
