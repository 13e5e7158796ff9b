// SPDX-License-Identifier: BSD-3-Clause
import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { IConsoleTracker } from '@jupyterlab/console';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { KernelSpec, Session } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { ISessionContext } from '@jupyterlab/apputils';
import { Token } from '@lumino/coreutils';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import type { IGroup, ISession, IStatus } from '../core/status';
import type { IGpuShareModel } from '../tokens';
import { printable, type Names } from '../words/short';

/** The documents of this page, and what they have to do with the groups. */
export interface IDocuments {
  /** Emitted when a name changed, or another document came to the front. */
  readonly changed: ISignal<IDocuments, void>;
  /** The kernel of the notebook or console in front, or of the last one that was. */
  readonly currentKernel: string | null;
  /** The group of that kernel. */
  readonly currentGroup: IGroup | null;
  /** The documents that use a group's kernel, as the page knows them. */
  of(group: Pick<IGroup, 'id' | 'sessions'>): ISession[];
  /** What the groups are called; the same object until a name changes. */
  names(status: IStatus): Names;
}

export const IDocuments = new Token<IDocuments>(
  'jupyter-gpushare:IDocuments',
  'What the documents of the page have to do with the GPUs that they share.'
);

/**
 * What groups are called.
 *
 * A document is called by its file, with as many of its folders as tell it from others;
 * a console by its number and language; a shared kernel by all its documents.
 *
 * @param documentsOf - The documents that use a group's kernel.
 * @param languageOf - The language of a kernel, or '' if nobody knows.
 */
export function nameGroups(
  groups: readonly IGroup[],
  documentsOf: (group: IGroup) => ISession[],
  languageOf: (kernelId: string) => string,
  trans: TranslationBundle
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
  trans: TranslationBundle
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

/** For each path its file, and as many of its folders as tell it from the others. */
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

/** Give those that are still called the same the beginning of their ids. */
function tellApart(
  names: Map<string, string>,
  trans: TranslationBundle
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

export class Documents implements IDocuments {
  constructor(options: Documents.IOptions) {
    this._options = options;
    const { notebooks, consoles, sessions } = options;
    const emit = (): void => this._changed.emit();
    for (const tracker of [notebooks, consoles]) {
      tracker?.currentChanged.connect(emit);
      tracker?.widgetAdded.connect(
        (_: unknown, widget: { sessionContext: ISessionContext }) => {
          widget.sessionContext.kernelChanged.connect(emit);
        }
      );
    }
    sessions.runningChanged.connect(emit);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get currentKernel(): string | null {
    const { shell, notebooks, consoles } = this._options;
    const widgets = [notebooks?.currentWidget, consoles?.currentWidget];
    const widget =
      widgets.find(widget => widget && widget === shell.currentWidget) ??
      widgets.find(widget => widget);
    return widget?.sessionContext.session?.kernel?.id ?? null;
  }

  get currentGroup(): IGroup | null {
    return this._options.model.groupOf(this.currentKernel);
  }

  of(group: Pick<IGroup, 'id' | 'sessions'>): ISession[] {
    return documentsOf(group, this._running());
  }

  names(status: IStatus): Names {
    const running = this._running();
    const names = nameGroups(
      status.groups,
      group => documentsOf(group, running),
      id => this._languageOf(id),
      this._options.trans
    );
    if (!equal(names, this._names)) {
      this._names = names;
    }
    return this._names;
  }

  /** The sessions of the page by their kernels: it hears of its own renames at once. */
  private _running(): Map<string, ISession[]> {
    const running = new Map<string, ISession[]>();
    this._kernels.clear();
    for (const session of this._options.sessions.running()) {
      const { kernel, path, name, type } = session;
      if (kernel) {
        this._kernels.set(kernel.id, kernel.name);
        const others = running.get(kernel.id) ?? [];
        others.push({ path, name, type, kernel_id: kernel.id });
        running.set(kernel.id, others);
      }
    }
    return running;
  }

  private _languageOf(kernelId: string): string {
    const name = this._kernels.get(kernelId) ?? '';
    return this._options.kernelspecs.specs?.kernelspecs[name]?.language ?? name;
  }

  private _changed = new Signal<this, void>(this);
  private _kernels = new Map<string, string>();
  private _names: Names = new Map();
  private _options: Documents.IOptions;
}

export namespace Documents {
  export interface IOptions {
    model: IGpuShareModel;
    sessions: Pick<Session.IManager, 'running' | 'runningChanged'>;
    kernelspecs: Pick<KernelSpec.IManager, 'specs'>;
    shell: Pick<JupyterFrontEnd.IShell, 'currentWidget'>;
    notebooks: INotebookTracker | null;
    consoles: IConsoleTracker | null;
    trans: TranslationBundle;
  }
}

function documentsOf(
  group: Pick<IGroup, 'id' | 'sessions'>,
  running: ReadonlyMap<string, ISession[]>
): ISession[] {
  const kernels = new Set([
    group.id,
    ...group.sessions.map(session => session.kernel_id)
  ]);
  const own = [...kernels].flatMap(kernel => running.get(kernel) ?? []);
  return own.length > 0 ? own : group.sessions;
}

function equal(a: Names, b: Names): boolean {
  return a.size === b.size && [...a].every(([id, name]) => b.get(id) === name);
}
