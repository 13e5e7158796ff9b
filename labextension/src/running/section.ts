// SPDX-License-Identifier: BSD-3-Clause
import type { IRunningSessions } from '@jupyterlab/running';
import type { Kernel } from '@jupyterlab/services';
import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import { run } from '../actions/run';
import { formatBytes } from '../core/format';
import type { IGroup, IStatus } from '../core/status';
import { isWaiting, memoryOf, showsBackground } from '../core/status';
import type { ITranslation } from '../core/translation';
import { gpuShareIcon } from '../icon';
import { wordingOf } from '../state/wording';
import type { IDocuments, IGpuShareModel } from '../tokens';
import { CommandIds } from '../tokens';
import { detailsOf } from '../words/details';
import { shortName, wordName } from '../words/mentions';
import type { IWording } from '../words/short';
import { frozenText, placeText, stateName, titleText } from '../words/short';

/**
 * A section of the sidebar "Running Terminals and Kernels": the kernels of this server that
 * use the GPU, each with its state and its memory.
 */
export class GpuSection implements IRunningSessions.IManager, IDisposable {
  constructor(options: GpuSection.IOptions) {
    this._options = options;
    const { model, documents, trans } = options;
    this.name = titleText(trans);
    this.shutdownLabel = trans.__('Shut Down Kernel');
    this.shutdownAllConfirmationText = trans.__(
      'Shut down all kernels of this server that use the GPU? Their variables are lost.'
    );
    model.changed.connect(this._update, this);
    documents.changed.connect(this._update, this);
  }

  readonly name: string;
  readonly shutdownLabel: string;
  readonly shutdownAllConfirmationText: string;
  readonly supportsMultipleViews = false;

  get runningChanged(): ISignal<this, void> {
    return this._runningChanged;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    Signal.clearData(this);
  }

  running(): IRunningSessions.IRunningItem[] {
    const { model, documents, trans } = this._options;
    const { status, now } = model;
    if (!status) {
      return [];
    }
    const wording = wordingOf(status, model, documents, trans);
    return this._groups(status).map(group => {
      const name = wording.names.get(group.id) ?? shortName(group.name);
      const background = showsBackground(group, status.groups);
      return {
        className: 'jp-GpuShare-running',
        context: group.id,
        icon: () => gpuShareIcon,
        // The line is narrow, so the whole name is in the tooltip.
        label: () => wordName(name),
        labelTitle: () =>
          [name, detailsOf(group, wording, now, background)].join('\n'),
        detail: () => detailOf(group, wording),
        open: () =>
          run(this._options.commands, {
            command: CommandIds.goTo,
            args: { group: group.id }
          }),
        shutdown: () => this._shutdown([group])
      };
    });
  }

  /** The model keeps the list up to date by itself. */
  refreshRunning(): void {
    this._update();
  }

  shutdownAll(): void {
    const { status } = this._options.model;
    this._shutdown(status ? this._groups(status) : []);
  }

  /** The groups whose kernels this server runs, in an order that does not change with their states. */
  private _groups(status: IStatus): IGroup[] {
    return status.groups
      .filter(group => this._options.documents.of(group).length > 0)
      .sort((a, b) => a.name.localeCompare(b.name));
  }

  private _shutdown(groups: readonly IGroup[]): void {
    const { documents, kernels } = this._options;
    const ids = groups.flatMap(group =>
      documents.of(group).map(({ kernel_id }) => kernel_id)
    );
    for (const id of new Set(ids)) {
      kernels.shutdown(id).catch(console.error);
    }
  }

  /** Notify JupyterLab when the text of the list changes, not with each change of the status. */
  private _update(): void {
    const shown = JSON.stringify(
      this.running().map(({ context, label, detail }) => [
        context,
        label(),
        detail?.()
      ])
    );
    if (shown !== this._shown) {
      this._shown = shown;
      this._runningChanged.emit();
    }
  }

  private _isDisposed = false;
  private _options: GpuSection.IOptions;
  private _runningChanged = new Signal<this, void>(this);
  /** The text of the list when JupyterLab was last notified. */
  private _shown = '[]';
}

export namespace GpuSection {
  export interface IOptions {
    model: IGpuShareModel;
    documents: IDocuments;
    kernels: Pick<Kernel.IManager, 'shutdown'>;
    commands: CommandRegistry;
    trans: ITranslation;
  }
}

/** `waiting, 2nd · 4 GiB`: the state of a kernel, and its memory on the GPU if it has any. */
function detailOf(group: IGroup, wording: IWording): string {
  const { trans, units } = wording;
  const { resident } = memoryOf(group);
  const state = group.preferences.frozen
    ? frozenText(trans)
    : stateName(group, trans);
  const place =
    isWaiting(group) && group.position !== null && !group.preferences.frozen
      ? trans.__('%1, %2', state, placeText(group.position, trans))
      : state;
  return resident > 0
    ? [place, formatBytes(resident, units)].join(' · ')
    : place;
}
