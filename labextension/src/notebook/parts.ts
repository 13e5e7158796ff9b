// SPDX-License-Identifier: BSD-3-Clause
import type { Cell } from '@jupyterlab/cells';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { NotebookActions } from '@jupyterlab/notebook';
import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import { MessageLoop } from '@lumino/messaging';
import { Signal } from '@lumino/signaling';

import type { ITranslation } from '../core/translation';
import { wordingOf } from '../state/wording';
import type { IDocuments, IGpuShareModel } from '../tokens';
import { NotebookPart } from './part';

/** Milliseconds for which it looks on when no notebook needs it: cells follow each other. */
const PATIENCE = 5000;

/** Milliseconds between two drawings of what counts time, at least. */
const SHORTEST = 100;

/** Messages after which a widget may be seen, or no longer. */
const VISIBILITY = ['after-show', 'after-hide', 'after-attach', 'after-detach'];

/** What notebooks show of the GPU; see `NotebookPart`. */
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

  /** Show it in all notebooks, also in those that come. */
  connect(notebooks: INotebookTracker): void {
    notebooks.forEach(panel => this._add(panel));
    notebooks.widgetAdded.connect((_, panel) => this._add(panel), this);
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    document.removeEventListener('visibilitychange', this._onVisibility);
    window.clearTimeout(this._timer);
    window.clearTimeout(this._leaving);
    this._look?.dispose();
    for (const part of this._parts) {
      part.dispose();
    }
    this._parts.clear();
    Signal.clearData(this);
  }

  private _add(panel: NotebookPanel): void {
    const part = new NotebookPart(panel, this._options);
    this._parts.add(part);
    MessageLoop.installMessageHook(panel, (_: unknown, { type }: Message) => {
      if (VISIBILITY.includes(type)) {
        this._schedule();
      }
      return true;
    });
    panel.sessionContext.kernelChanged.connect(this._schedule, this);
    panel.sessionContext.statusChanged.connect(this._schedule, this);
    panel.disposed.connect(() => {
      this._parts.delete(part);
      part.dispose();
      this._schedule();
    });
    this._schedule();
  }

  private _onChanged(): void {
    this._fresh = !document.hidden;
    this._update();
  }

  private _onScheduled(_: unknown, { cell }: { cell: Cell }): void {
    for (const part of this._parts) {
      part.forget(cell);
    }
  }

  private _onVisibility = (): void => {
    this._fresh = false;
    this._update();
  };

  /** Look around soon, once for all that comes now. */
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
    window.clearTimeout(this._leaving);
    if ([...this._parts].some(part => part.active)) {
      this._look ??= this._options.model.look();
    } else if (this._look) {
      this._leaving = window.setTimeout(() => {
        this._look?.dispose();
        this._look = null;
      }, PATIENCE);
    }
  }

  private _update(): void {
    window.clearTimeout(this._timer);
    const { model, documents, trans } = this._options;
    const { status, now, preferences } = model;
    if (!status || document.hidden || this._isDisposed) {
      return;
    }
    const delay = preferences.notify ? preferences.notificationDelay : Infinity;
    const wording = wordingOf(status, model, documents, trans);
    const moment = { status, wording, now, delay, fresh: this._fresh };
    let next = Infinity;
    for (const part of this._parts) {
      next = Math.min(next, part.update(model.groupOf(part.kernelId), moment));
    }
    if (next < Infinity) {
      this._timer = window.setTimeout(
        () => this._update(),
        Math.max(SHORTEST, 1000 * next)
      );
    }
  }

  /** Whether the state is one of the time since the page is seen. */
  private _fresh = !document.hidden;
  private _isDisposed = false;
  private _leaving = 0;
  private _look: IDisposable | null = null;
  private _options: NotebookParts.IOptions;
  private _parts = new Set<NotebookPart>();
  private _scheduled = false;
  private _timer = 0;
}

export namespace NotebookParts {
  export interface IOptions {
    model: IGpuShareModel;
    documents: IDocuments;
    commands: CommandRegistry;
    trans: ITranslation;
  }
}
