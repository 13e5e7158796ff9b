// SPDX-License-Identifier: BSD-3-Clause
import type { Cell } from '@jupyterlab/cells';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { NotebookActions } from '@jupyterlab/notebook';
import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import { MessageLoop } from '@lumino/messaging';
import { Debouncer } from '@lumino/polling';
import { Signal } from '@lumino/signaling';

import { Timer } from '../core/timer';
import type { ITranslation } from '../core/translation';
import { wordingOf } from '../state/wording';
import type { IDocuments, IGpuShareModel } from '../tokens';
import { NotebookPart } from './part';
import type { ToolbarSlots } from './slot';

/** Milliseconds for which the model stays active when no notebook needs it. The next cell often follows at once. */
const PATIENCE = 5000;

/** The shortest time between two updates of the shown times, in milliseconds. */
const SHORTEST = 100;

/** Messages that can change whether a widget is visible. */
const VISIBILITY = ['after-show', 'after-hide', 'after-attach', 'after-detach'];

/** The GPU state in all notebooks; see `NotebookPart`. */
export class NotebookParts implements IDisposable {
  constructor(options: NotebookParts.IOptions) {
    this._options = options;
    options.model.changed.connect(this._onChanged, this);
    options.documents.changed.connect(this._update, this);
    NotebookActions.executionScheduled.connect(this._onScheduled, this);
    document.addEventListener('visibilitychange', this._onVisibility);
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Show the GPU state in all notebooks, including those that are opened later. */
  connect(notebooks: INotebookTracker): void {
    notebooks.forEach(panel => this._add(panel));
    notebooks.widgetAdded.connect(this._onAdded, this);
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    document.removeEventListener('visibilitychange', this._onVisibility);
    this._next.dispose();
    this._leaving.dispose();
    this._look?.dispose();
    for (const [panel, part] of this._parts) {
      MessageLoop.removeMessageHook(panel, this._onMessage);
      part.dispose();
    }
    this._parts.clear();
    Signal.clearData(this);
  }

  private _onAdded(_: unknown, panel: NotebookPanel): void {
    this._add(panel);
  }

  private _add(panel: NotebookPanel): void {
    const part = new NotebookPart(panel, this._options);
    this._parts.set(panel, part);
    MessageLoop.installMessageHook(panel, this._onMessage);
    panel.sessionContext.kernelChanged.connect(this._schedule, this);
    panel.sessionContext.statusChanged.connect(this._schedule, this);
    panel.disposed.connect(this._remove, this);
    this._schedule();
  }

  private _remove(panel: NotebookPanel): void {
    this._parts.get(panel)?.dispose();
    this._parts.delete(panel);
    this._schedule();
  }

  private _onMessage = (_: unknown, { type }: Message): boolean => {
    if (VISIBILITY.includes(type)) {
      this._schedule();
    }
    return true;
  };

  private _onChanged(): void {
    this._fresh = !document.hidden;
    this._update();
  }

  private _onScheduled(_: unknown, { cell }: { cell: Cell }): void {
    for (const part of this._parts.values()) {
      part.forget(cell);
    }
  }

  private _onVisibility = (): void => {
    this._fresh = false;
    this._update();
  };

  /** Schedule one update for all current changes. */
  private _schedule(): void {
    if (!this._scheduled) {
      this._scheduled = true;
      queueMicrotask(() => {
        this._scheduled = false;
        this._lookIfNeeded();
        this._update();
      });
    }
  }

  private _lookIfNeeded(): void {
    if (this._isDisposed) {
      return;
    }
    void this._leaving.stop();
    if ([...this._parts.values()].some(part => part.active)) {
      this._look ??= this._options.model.look();
    } else if (this._look) {
      void this._leaving.invoke();
    }
  }

  private _update(): void {
    this._next.stop();
    const { model, documents, trans } = this._options;
    const { status, now, preferences } = model;
    if (!status || document.hidden || this._isDisposed) {
      return;
    }
    const delay = preferences.notify ? preferences.notificationDelay : Infinity;
    const wording = wordingOf(status, model, documents, trans);
    const moment = { status, wording, now, delay, fresh: this._fresh };
    let next = Infinity;
    for (const part of this._parts.values()) {
      next = Math.min(next, part.update(model.groupOf(part.kernelId), moment));
    }
    if (next < Infinity) {
      this._next.set(Math.max(SHORTEST, 1000 * next));
    }
  }

  /** Whether the state is newer than the moment at which the page became visible. */
  private _fresh = !document.hidden;
  private _isDisposed = false;
  private _leaving = new Debouncer(() => {
    this._look?.dispose();
    this._look = null;
  }, PATIENCE);
  private _look: IDisposable | null = null;
  /** Timer for texts that change with time. */
  private _next = new Timer(() => this._update());
  private _options: NotebookParts.IOptions;
  private _parts = new Map<NotebookPanel, NotebookPart>();
  private _scheduled = false;
}

export namespace NotebookParts {
  export interface IOptions {
    model: IGpuShareModel;
    documents: IDocuments;
    commands: CommandRegistry;
    trans: ITranslation;
    slots: ToolbarSlots;
  }
}
