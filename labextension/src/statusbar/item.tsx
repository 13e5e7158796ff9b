// SPDX-License-Identifier: BSD-3-Clause
import { TextItem } from '@jupyterlab/statusbar';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import { Poll } from '@lumino/polling';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';
import React from 'react';

import type { ITranslation } from '../core/translation';
import { run } from '../actions/run';
import type { IStatus } from '../core/status';
import { isUnavailable, isUnshared, isWaiting } from '../core/status';
import { wordingOf } from '../state/wording';
import { CommandIds, IDocuments, IGpuShareModel } from '../tokens';
import { statusText } from '../words/statusbar';
import type * as Details from '../words/details';

/** The key in the browser's storage for the time at which the server was first seen without a GPU. */
const SINCE = 'jupyter-gpushare:no-gpu-since';

/** Milliseconds after which users no longer need this message. */
const DAY = 86_400_000;

/** Whether users have known for a day that the server has no GPU. */
function isOldNews({ availability, gpus }: IStatus): boolean {
  if (availability.code !== 'no_driver') {
    // A lost connection or a server that is starting does not mean that there is a GPU.
    if (gpus.length > 0) {
      localStorage.removeItem(SINCE);
    }
    return false;
  }
  const now = Date.now();
  const since = Number(localStorage.getItem(SINCE)) || now;
  localStorage.setItem(SINCE, `${since}`);
  return now - since > DAY;
}

/** The item in the status bar. */
export class StatusItem extends ReactWidget {
  constructor(options: StatusItem.IOptions) {
    super();
    this._options = options;
    options.model.changed.connect(this._onChanged, this);
    options.documents.changed.connect(this._onChanged, this);
    document.addEventListener('visibilitychange', this._onVisibility);
    this.addClass('jp-GpuShare-statusItem');
    // JupyterLab's own style for clickable items, because ours is loaded later.
    this.addClass('jp-mod-highlighted');
    this._onChanged();
  }

  /** Whether the item is shown, and a signal for when that changes. */
  get wanted(): boolean {
    return this._wanted;
  }
  get wantedChanged(): ISignal<this, void> {
    return this._wantedChanged;
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._poll.dispose();
    document.removeEventListener('visibilitychange', this._onVisibility);
    this._look?.dispose();
    Signal.clearData(this);
    super.dispose();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._lookIfShown();
  }

  protected onBeforeDetach(message: Message): void {
    super.onBeforeDetach(message);
    this._look?.dispose();
    this._look = null;
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._lookIfShown();
  }

  protected onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._lookIfShown();
  }

  protected render(): JSX.Element | null {
    const { model, documents, commands, trans } = this._options;
    const { status, now, preferences } = model;
    const group = documents.currentGroup;
    const isShown = status !== null && this._wanted;
    const counts = isShown && group !== null && isWaiting(group);
    void (counts ? this._poll.start() : this._poll.stop());
    if (!isShown) {
      return null;
    }
    const kernelId = documents.currentKernel;
    const wording = wordingOf(status, model, documents, trans);
    const text = statusText(
      status,
      kernelId,
      group,
      wording,
      now,
      preferences.statusBar === 'state-and-memory'
    );
    if (group || isUnavailable(status) || isUnshared(status, kernelId)) {
      this._load();
    }
    const title = this._details?.statusTitle(
      status,
      kernelId,
      group,
      wording,
      now
    );
    const open = (): void => run(commands, { command: CommandIds.openPanel });
    return (
      <TextItem
        source={text}
        title={title ?? ''}
        role="button"
        tabIndex={0}
        style={{ cursor: 'pointer' }}
        onClick={open}
        onKeyDown={event => {
          if (event.key === 'Enter' || event.key === ' ') {
            event.preventDefault();
            event.stopPropagation();
            open();
          }
        }}
      />
    );
  }

  /** Load the texts of the tooltip when they are first needed. */
  private _load(): void {
    this._loading ??= import(
      /* webpackChunkName: "details" */ '../words/details'
    )
      .then(details => {
        this._details = details;
        this.update();
      })
      // The text is shown without the tooltip.
      .catch(console.error);
  }

  private _onChanged(): void {
    const { preferences, status } = this._options.model;
    // The model asks the server regularly, so this is also checked while JupyterLab stays open.
    const isQuiet = status !== null && isOldNews(status);
    const wanted = preferences.statusBar !== 'none' && !isQuiet;
    if (wanted !== this._wanted) {
      this._wanted = wanted;
      this._wantedChanged.emit();
    }
    this.update();
  }

  private _onVisibility = (): void => {
    if (!document.hidden) {
      this.update();
    }
  };

  private _lookIfShown(): void {
    if (this.isAttached && !this.isHidden) {
      this._look ??= this._options.model.look();
    } else {
      this._look?.dispose();
      this._look = null;
    }
  }

  private _details: typeof Details | null = null;
  private _loading: Promise<void> | null = null;
  private _look: IDisposable | null = null;
  private _options: StatusItem.IOptions;
  /** Updates the times that are shown. */
  private _poll = new Poll({
    auto: false,
    factory: () => {
      this.update();
      return Promise.resolve();
    },
    frequency: { interval: 1000, backoff: false },
    standby: 'when-hidden'
  });
  private _wanted = true;
  private _wantedChanged = new Signal<this, void>(this);
}

export namespace StatusItem {
  export interface IOptions {
    model: IGpuShareModel;
    documents: IDocuments;
    commands: CommandRegistry;
    trans: ITranslation;
  }
}
