// SPDX-License-Identifier: BSD-3-Clause
import type { IGroup } from '../core/status';
import { printable } from './names';

/** The name of a group for sentences. */
export function nameIn(
  names: ReadonlyMap<string, string>,
  group: IGroup
): string {
  return isolate(wordName(names.get(group.id) ?? group.name));
}

/** The name of a notebook for rows: its file without the folders. */
export function shortName(name: string): string {
  return printable(
    name.endsWith('.ipynb') ? name.slice(name.lastIndexOf('/') + 1) : name
  );
}

/** The name of a notebook for sentences. */
export function wordName(name: unknown): string {
  return typeof name === 'string' ? name.replace(/\.ipynb\b/g, '') : '';
}

/** Shorten a name in its middle, because the folder and the end distinguish it from others. */
export function shorten(name: string, length: number): string {
  const tail = Math.floor((length - 1) / 3);
  const letters = [...name];
  return letters.length > length
    ? `${letters.slice(0, length - 1 - tail).join('')}…${letters.slice(-tail).join('')}`
    : name;
}

/** Letters of scripts that are written from right to left. */
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

/** Whether a name has letters that are written from right to left. */
export function isRightToLeft(name: string): boolean {
  return RIGHT_TO_LEFT.test(name);
}

/** Isolate a right-to-left name, so that the words around it keep their order. */
export function isolate(name: string): string {
  return isRightToLeft(name) ? `\u2068${name}\u2069` : name;
}
