// SPDX-License-Identifier: BSD-3-Clause
import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';
import type { IConsoleTracker } from '@jupyterlab/console';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { KernelSpec, Session } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import type { ITranslation } from '../core/translation';
import type { IGroup, ISession, IStatus } from '../core/status';
import type { IDocuments, IGpuShareModel } from '../tokens';
import type { Names } from '../words/names';
import { nameGroups } from '../words/names';

export class Documents implements IDocuments, IDisposable {
  constructor(options: Documents.IOptions) {
    this._options = options;
    const { notebooks, consoles, sessions } = options;
    for (const tracker of [notebooks, consoles]) {
      tracker?.currentChanged.connect(this._emit, this);
      tracker?.widgetAdded.connect(this._onAdded, this);
    }
    sessions.runningChanged.connect(this._emit, this);
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    Signal.clearData(this);
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

  private _emit(): void {
    this._changed.emit();
  }

  private _onAdded(
    _: unknown,
    { sessionContext }: { sessionContext: ISessionContext }
  ): void {
    sessionContext.kernelChanged.connect(this._emit, this);
  }

  /** The sessions of the page by their kernels. They have new names earlier than the status. */
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
  private _isDisposed = false;
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
    trans: ITranslation;
  }
}

export function documentsOf(
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
