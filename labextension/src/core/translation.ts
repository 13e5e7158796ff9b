// SPDX-License-Identifier: BSD-3-Clause

/** What translates a text: a bundle of JupyterLab's, or the English of a page without translations. */
export interface ITranslation {
  /** A text, whose `%1`, `%2`, … are replaced by the arguments. */
  __(text: string, ...args: unknown[]): string;
  /** A text about a number, which is `%1`. */
  _n(singular: string, plural: string, n: number, ...args: unknown[]): string;
}
