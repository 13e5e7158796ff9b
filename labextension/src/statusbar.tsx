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

import { run } from './commands';
import { IDocuments } from './documents';
import { formatBytes } from './format';
import { detailsOf, waitText, wordingOf } from './notebook/words';
import type { IGroup, IStatus } from './status';
import { isRunning, memoryOf } from './status';
import { CommandIds, IGpuShareModel } from './tokens';
import type { IWording } from './words';
import { availabilityText, linkText, stateName, unsharedText } from './words';

/** What the status bar says of the GPU, and more for who points at it. */
export interface IStatusText {
  text: string;
  title: string;
}

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
): IStatusText {
  const { trans, units } = wording;
  const unavailable = availabilityText(status.availability, trans);
  if (unavailable && !group) {
    return {
      text: trans.__('GPU: %1', linkText(status.availability, trans).text),
      title: unavailable.title
    };
  }
  const unshared = status.unshared.find(
    ({ kernel_id }) => kernel_id === kernelId
  );
  if (unshared && !group) {
    const { title, text } = unsharedText(
      trans.__('This notebook'),
      unshared,
      trans
    );
    return { text: trans.__('GPU: not shared'), title: `${title}\n${text}` };
  }
  const resident = (bytes: number): string =>
    trans.__('%1 resident', formatBytes(bytes, units));
  const parts: string[] = [];
  let title = '';
  if (group) {
    title = detailsOf(group, wording, now);
    const bytes = memoryOf(group).resident;
    if (group.wishes.frozen) {
      parts.push(trans.__('frozen'));
    } else if (group.state === 'waiting') {
      parts.push(trans.__('waiting (%1)', waitText(group, trans, now)));
    } else {
      parts.push(stateName(group, trans));
    }
    if (memory && bytes > 0 && !isRunning(group) && group.state !== 'waiting') {
      parts.push(resident(bytes));
    }
  } else {
    const running = status.groups.filter(isRunning).length;
    const waiting = status.groups.filter(
      ({ state }) => state === 'waiting'
    ).length;
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
  return {
    text: trans.__('GPU: %1', parts.join(trans.__(', '))),
    title: unavailable ? `${unavailable.title}\n${title}` : title
  };
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
    if (group?.state === 'waiting' && !document.hidden) {
      this._timer = window.setTimeout(() => this.update(), 1000);
    }
    const { text, title } = statusText(
      status,
      documents.currentKernel,
      group,
      wordingOf(status, model, documents, trans),
      now,
      preferences.statusBar === 'state-and-memory'
    );
    const open = (): void => run(commands, { command: CommandIds.openPanel });
    return (
      <TextItem
        source={text}
        title={title}
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
