// SPDX-License-Identifier: BSD-3-Clause
import type { Cell, CodeCell } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { IDisposable } from '@lumino/disposable';
import type { PanelLayout } from '@lumino/widgets';
import React from 'react';

import { Timer } from '../core/timer';
import type { ITranslation } from '../core/translation';
import type { ICell, IGroup, IStatus } from '../core/status';
import { isWaiting, showsBackground } from '../core/status';
import type { IWording } from '../words/short';
import type { IPartOptions } from './chip';
import { Chip } from './chip';
import { WaitNotification } from './notification';
import { Runs } from './runs';
import type { IStripState } from './strip';
import type { ToolbarSlots } from './slot';
import { resultStrip, runningStrip, StripWidget, waitingStrip } from './strip';

/** Seconds of waiting after which a strip is shown. Shorter waits would only make it flicker. */
const SHOWN_AFTER = 0.3;

/** The shortest wait that is reported after the cell has finished, in seconds. */
const REPORTED_AFTER = 0.2;

/** Milliseconds for which a strip stays after the cell has finished. */
const REPORTED_FOR = 5 * 60_000;

/** Seconds between two updates of the shown times. */
const SECOND = 1;

/** The state to show. */
export interface IMoment {
  status: IStatus;
  wording: IWording;
  /** The scheduler's clock. */
  now: number;
  /** Seconds after which a wait causes a notification, or Infinity. */
  delay: number;
  /** Whether the state is newer than the moment at which the page became visible. Older events cause no notifications. */
  fresh: boolean;
}

/** The GPU state in one notebook: chip, strips and notification. */
export class NotebookPart implements IDisposable {
  constructor(panel: NotebookPanel, options: NotebookPart.IOptions) {
    this.panel = panel;
    this._options = options;
    this._notification = new WaitNotification(options.commands);
    this._runs = new Runs(panel);
  }

  readonly panel: NotebookPanel;

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  get kernelId(): string | null {
    return this.panel.sessionContext.session?.kernel?.id ?? null;
  }

  /** Whether the state of its kernel matters, because the notebook is visible or busy. */
  get active(): boolean {
    return (
      this.panel.isVisible ||
      this.panel.sessionContext.session?.kernel?.status === 'busy'
    );
  }

  /**
   * Show the GPU state of the kernel.
   *
   * @returns Seconds until a shown time changes, or Infinity.
   */
  update(group: IGroup | null, moment: IMoment): number {
    const { status, wording, now, delay, fresh } = moment;
    if (this.panel.isVisible) {
      this._updateChip(group, moment);
    }
    const next = this._updateStrips(group, moment);
    return fresh
      ? Math.min(
          next,
          this._notification.update(group, status, wording, now, delay)
        )
      : next;
  }

  /** Remove the strips of earlier runs of a cell. */
  forget(cell: Cell): void {
    for (const [id, strip] of this._strips) {
      if (strip.cell === cell && !this._open.has(id)) {
        this._remove(id);
      }
    }
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._notification.dispose();
    this._runs.dispose();
    for (const id of [...this._strips.keys()]) {
      this._remove(id);
    }
    const slot = this._options.slots.of(this.panel);
    if (slot) {
      slot.content = null;
    }
  }

  private _updateChip(group: IGroup | null, moment: IMoment): void {
    const { status, wording, now } = moment;
    const kernelId = this.kernelId;
    const unshared =
      SHARING.includes(status.availability.code) && kernelId !== null
        ? (status.unshared.find(({ kernel_id }) => kernel_id === kernelId) ??
          null)
        : null;
    const background = group !== null && showsBackground(group, status.groups);
    const state = { group, unshared, background, wording, now };
    const slot = this._options.slots.of(this.panel);
    if (slot && (slot.content || group || unshared)) {
      const { model, commands } = this._options;
      slot.content = React.createElement(Chip, { model, commands, state });
    }
  }

  private _updateStrips(group: IGroup | null, moment: IMoment): number {
    const { status, wording, now } = moment;
    const cell = group?.cell ?? null;
    const last = group?.last_cell ?? null;
    for (const [id, strip] of this._strips) {
      if (strip.cell.isDisposed) {
        // The cell was deleted, or moved, which creates a new widget.
        this._remove(id);
      } else if (this._open.has(id) && id !== cell?.msg_id) {
        if (group) {
          const waited = this._open.get(id) ?? 0;
          const result = last?.msg_id === id ? last : { waited, ran: null };
          this._showResult(id, result, wording);
        } else {
          this._remove(id);
        }
      }
    }
    if (last && last.msg_id !== this._reported) {
      this._reported = last.msg_id;
      if (!this._strips.has(last.msg_id)) {
        this._showResult(last.msg_id, last, wording);
      }
    }
    if (!group || !cell) {
      return Infinity;
    }
    const waited = waitedOf(cell, group, now);
    if (!isWaiting(group) && group.state !== 'restoring') {
      if (this._strips.has(cell.msg_id)) {
        this._showRunning(cell.msg_id, runningStrip(waited, wording), waited);
      }
      return Infinity;
    }
    if (waited < SHOWN_AFTER && !this._strips.has(cell.msg_id)) {
      return isWaiting(group) ? SHOWN_AFTER - waited : Infinity;
    }
    const waiting = waitingStrip(group, status, wording, now);
    this._showRunning(cell.msg_id, waiting, waited);
    return SECOND;
  }

  /** Show how long a finished cell has waited and run. */
  private _showResult(
    id: string,
    result: { waited: number; ran: number | null },
    wording: IWording
  ): void {
    this._open.delete(id);
    if (result.waited <= REPORTED_AFTER) {
      this._remove(id);
    } else if (
      this._show(id, resultStrip(result, wording), this._runs.cellOf(id))
    ) {
      const end = new Timer(() => this._remove(id));
      end.set(REPORTED_FOR);
      this._ends.set(id, end);
    }
  }

  /** Show a strip in the cell that a request runs, if it is in this notebook. */
  private _showRunning(id: string, state: IStripState, waited: number): void {
    if (this._show(id, state, this._runs.runningCell(id))) {
      this._open.set(id, waited);
    }
  }

  /** Show a strip of a request in its cell, if there is one. */
  private _show(
    id: string,
    state: IStripState,
    cell: CodeCell | null
  ): boolean {
    const shown = this._strips.get(id);
    if (shown) {
      shown.widget.state = state;
      return true;
    }
    if (!cell) {
      return false;
    }
    this.forget(cell);
    const widget = new StripWidget(this._options, state);
    this._strips.set(id, { cell, widget });
    if (cell.isPlaceholder()) {
      void cell.ready.then(() => insert(cell, widget));
    } else {
      insert(cell, widget);
    }
    return true;
  }

  private _remove(id: string): void {
    this._ends.get(id)?.dispose();
    this._ends.delete(id);
    this._open.delete(id);
    const { cell, widget } = this._strips.get(id) ?? {};
    if (widget?.node.contains(document.activeElement)) {
      // Keyboard users should not lose their place.
      cell?.node.focus({ preventScroll: true });
    }
    widget?.dispose();
    this._strips.delete(id);
  }

  /** The times at which the strips of finished cells are removed. */
  private _ends = new Map<string, Timer>();
  private _isDisposed = false;
  private _notification: WaitNotification;
  /** Seconds for which unfinished cells with a strip have waited. */
  private _open = new Map<string, number>();
  private _options: NotebookPart.IOptions;
  private _runs: Runs;
  /** The strips, by the id of the message that runs the cell. */
  private _strips = new Map<string, { cell: CodeCell; widget: StripWidget }>();
  /** The last cell whose result was shown. */
  private _reported = '';
}

export namespace NotebookPart {
  export interface IOptions extends IPartOptions {
    trans: ITranslation;
    /** The places in the toolbars. */
    slots: ToolbarSlots;
  }
}

/** Codes of servers whose kernels can share the GPU, so that a kernel that does not share is worth mentioning. */
const SHARING = ['ok', 'provisioner_not_default'];

/** Seconds for which a cell has waited until now. */
function waitedOf(cell: ICell, group: IGroup, now: number): number {
  return cell.waited + (isWaiting(group) ? now - group.at : 0);
}

/** Add a strip below the cell's outputs, unless the cell has not been rendered yet. */
function insert(cell: CodeCell, strip: StripWidget): void {
  if (!cell.isDisposed && !strip.isDisposed) {
    const layout = cell.layout as PanelLayout;
    // The last widget is the footer.
    layout.insertWidget(layout.widgets.length - 1, strip);
  }
}
