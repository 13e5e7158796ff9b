// SPDX-License-Identifier: BSD-3-Clause
import type { IGroup, ISession } from '../core/status';
import type { ITranslation } from '../core/translation';

/**
 * Name the groups.
 *
 * The name of a document is its file, with as many folders as needed to distinguish it. The name
 * of a console is its number and language. The name of a shared kernel lists all its documents.
 *
 * @param documentsOf - Returns the documents that use a group's kernel.
 * @param languageOf - Returns the language of a kernel, or '' if it is unknown.
 */
export function nameGroups(
  groups: readonly IGroup[],
  documentsOf: (group: IGroup) => ISession[],
  languageOf: (kernelId: string) => string,
  trans: ITranslation
): Map<string, string> {
  const paths = new Set<string>();
  const found = groups.map(group => {
    const documents = documentsOf(group);
    for (const { path, type } of documents) {
      if (type !== 'console') {
        paths.add(path);
      }
    }
    if (documents.length === 0 && isPath(group.name)) {
      paths.add(group.name);
    }
    return { group, documents };
  });
  const short = shortestNames(paths);
  const names = new Map(
    found.map(({ group, documents }) => {
      const titles = documents.map(({ path, name, type, kernel_id }) => {
        if (type !== 'console') {
          return short.get(path) ?? path;
        }
        const language = languageOf(kernel_id);
        const title = printable(name);
        return language ? trans.__('%1 (%2)', title, language) : title;
      });
      return [
        group.id,
        listNames(titles, trans) ||
          (short.get(group.name) ?? printable(group.name))
      ];
    })
  );
  return tellApart(names, trans);
}

/** Whether a group's name is the path of its notebook. */
function isPath(name: string): boolean {
  return name.endsWith('.ipynb');
}

/** "a", "a and b", "a and 2 others". */
export function listNames(
  titles: readonly string[],
  trans: ITranslation
): string {
  const [first = '', second] = titles;
  switch (titles.length) {
    case 0:
    case 1:
      return first;
    case 2:
      return trans.__('%1 and %2', first, second);
    default:
      return trans._n(
        '%2 and %1 other',
        '%2 and %1 others',
        titles.length - 1,
        first
      );
  }
}

/** Shorten each path to its file and as many folders as needed to distinguish it. */
export function shortestNames(paths: ReadonlySet<string>): Map<string, string> {
  const alike = new Map<string, string[][]>();
  for (const path of paths) {
    const parts = path.split('/');
    const file = parts[parts.length - 1] ?? '';
    alike.set(file, [...(alike.get(file) ?? []), parts]);
  }
  const names = new Map<string, string>();
  for (const group of alike.values()) {
    for (const parts of group) {
      const end = (others: string[], count: number): string =>
        others.slice(-count).join('/');
      let count = 1;
      while (
        count < parts.length &&
        group.some(
          others => others !== parts && end(others, count) === end(parts, count)
        )
      ) {
        count++;
      }
      names.set(parts.join('/'), printable(end(parts, count)));
    }
  }
  return names;
}

/** Add the beginning of the id to names that are still equal. */
function tellApart(
  names: Map<string, string>,
  trans: ITranslation
): Map<string, string> {
  const uses = new Map<string, number>();
  for (const name of names.values()) {
    uses.set(name, (uses.get(name) ?? 0) + 1);
  }
  for (const [id, name] of names) {
    if ((uses.get(name) ?? 0) > 1) {
      names.set(id, trans.__('%1 (%2)', name, id.slice(0, 4)));
    }
  }
  return names;
}

/** The names of groups, by their ids. */
export type Names = ReadonlyMap<string, string>;

/** Characters that change the text around them: controls, line ends, and overrides of the writing direction. */
const UNSAFE =
  // eslint-disable-next-line no-control-regex
  /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;

/** Escape such characters in the name of a file or program, for example as `\x1b`. */
export function printable(name: string): string {
  return name.replace(UNSAFE, character => {
    const code = character.charCodeAt(0);
    const digits = code.toString(16);
    return code < 0x100
      ? `\\x${digits.padStart(2, '0')}`
      : `\\u${digits.padStart(4, '0')}`;
  });
}
