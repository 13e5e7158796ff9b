// SPDX-License-Identifier: BSD-3-Clause
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IStatusBar, TextItem } from '@jupyterlab/statusbar';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';
import React from 'react';

import { run } from '../actions/table';
import type * as Details from './title';
import { IDocuments } from '../state/documents';
import { formatBytes } from '../core/format';
import type { IGroup, IStatus } from '../core/status';
import { isRunning, isWaiting, memoryOf } from '../core/status';
import { CommandIds, IGpuShareModel } from '../tokens';
import type { IWording } from '../words/short';
import { linkText, stateName, waitText, wordingOf } from '../words/short';

/**
 * What to say of the notebook in front, or of the GPUs if it has not used them.
 *
 * @param memory - Whether to say how much memory there is on the GPU.
 */
export function statusText(
  status: IStatus,
  kernelId: string | null,
  group: IGroup | null,
  wording: IWording,
  now: number,
  memory: boolean
): string {
  const { trans, units } = wording;
  if (isUnavailable(status) && !group) {
    return trans.__('GPU: %1', linkText(status.availability, trans).text);
  }
  if (isUnshared(status, kernelId) && !group) {
    return trans.__('GPU: not shared');
  }
  const resident = (bytes: number): string =>
    trans.__('%1 resident', formatBytes(bytes, units));
  const parts: string[] = [];
  if (group) {
    const bytes = memoryOf(group).resident;
    if (group.wishes.frozen) {
      parts.push(trans.__('frozen'));
    } else if (group.state === 'waking') {
      parts.push(waitText(group, trans, now));
    } else if (group.state === 'waiting') {
      parts.push(trans.__('waiting (%1)', waitText(group, trans, now)));
    } else {
      parts.push(stateName(group, trans));
    }
    if (memory && bytes > 0 && !isRunning(group) && !isWaiting(group)) {
      parts.push(resident(bytes));
    }
  } else {
    const running = status.groups.filter(isRunning).length;
    const waiting = status.groups.filter(isWaiting).length;
    const bytes = status.groups.reduce(
      (sum, group) => sum + memoryOf(group).resident,
      0
    );
    if (running > 0) {
      parts.push(trans._n('%1 running', '%1 running', running));
    }
    if (waiting > 0) {
      parts.push(trans._n('%1 waiting', '%1 waiting', waiting));
    }
    if (parts.length === 0) {
      parts.push(trans.__('idle'));
    }
    if (memory && bytes > 0) {
      parts.push(resident(bytes));
    }
  }
  return trans.__('GPU: %1', parts.join(trans.__(', ')));
}

function isUnavailable({ availability }: IStatus): boolean {
  return availability.code !== 'ok';
}

function isUnshared({ unshared }: IStatus, kernelId: string | null): boolean {
  return unshared.some(({ kernel_id }) => kernel_id === kernelId);
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
    // JupyterLab's own marks of what one can click: no style sheet of ours is here yet.
    this.addClass('jp-mod-highlighted');
    this._onChanged();
  }

  /** Whether people want to see it, and a signal for when that changes. */
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
    window.clearTimeout(this._timer);
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
    window.clearTimeout(this._timer);
    if (!status || !this._wanted) {
      return null;
    }
    if (group && isWaiting(group) && !document.hidden) {
      this._timer = window.setTimeout(() => this.update(), 1000);
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

  /** Load the sentences, with the first that there is to say. */
  private _load(): void {
    this._loading ??= import(/* webpackChunkName: "details" */ './title')
      .then(details => {
        this._details = details;
        this.update();
      })
      // The text is there without them.
      .catch(console.error);
  }

  private _onChanged(): void {
    const wanted = this._options.model.preferences.statusBar !== 'none';
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
  private _timer = 0;
  private _wanted = true;
  private _wantedChanged = new Signal<this, void>(this);
}

export namespace StatusItem {
  export interface IOptions {
    model: IGpuShareModel;
    documents: IDocuments;
    commands: CommandRegistry;
    trans: TranslationBundle;
  }
}

export const statusBarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:status-bar',
  description: 'Shows in the status bar how the notebook stands with the GPU.',
  autoStart: true,
  requires: [IGpuShareModel, IDocuments],
  optional: [IStatusBar, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    documents: IDocuments,
    statusBar: IStatusBar | null,
    translator: ITranslator | null
  ): void => {
    if (!statusBar) {
      return;
    }
    const item = new StatusItem({
      model,
      documents,
      commands: app.commands,
      trans: (translator ?? nullTranslator).load('jupyter_gpushare')
    });
    statusBar.registerStatusItem(statusBarPlugin.id, {
      item,
      align: 'left',
      rank: 3,
      // It stays where there is little room: that a cell waits matters more than its line.
      priority: 1,
      isActive: () => item.wanted,
      activeStateChanged: item.wantedChanged
    });
  }
};
