// SPDX-License-Identifier: BSD-3-Clause
import { Notification } from '@jupyterlab/apputils';
import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';

import { run } from '../actions/run';
import { holderOf } from '../core/queue';
import type { IGroup, IStatus } from '../core/status';
import { isWaiting } from '../core/status';
import { CommandIds } from '../tokens';
import { nameIn, shorten } from '../words/mentions';
import { whyText } from '../words/reasons';
import type { IWording } from '../words/short';
import { goToLabel, goToText, placeText } from '../words/short';

/** The longest name. JupyterLab cuts off long messages, and names matter less than the rest. */
const LONGEST_NAME = 36;

/**
 * Notifies the user about long waits of one notebook, once for each, and only while it lasts.
 */
export class WaitNotification implements IDisposable {
  constructor(commands: CommandRegistry) {
    this._commands = commands;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /**
   * Show or withdraw the notification.
   *
   * @param delay - Seconds after which a wait is reported, or Infinity.
   * @returns Seconds until the notification is due, or Infinity.
   */
  update(
    group: IGroup | null,
    status: IStatus,
    wording: IWording,
    now: number,
    delay: number
  ): number {
    // A user who froze a notebook knows why it is waiting.
    if (
      !group?.cell ||
      !isWaiting(group) ||
      group.preferences.frozen ||
      delay === Infinity
    ) {
      this._dismiss();
      return Infinity;
    }
    const wait = `${group.cell.msg_id} ${group.since}`;
    if (wait === this._wait) {
      return Infinity;
    }
    this._dismiss();
    const left = delay - (now - group.since);
    if (left > 0) {
      return left;
    }
    this._wait = wait;
    this._show(group, status, wording);
    return Infinity;
  }

  dispose(): void {
    this._isDisposed = true;
    this._dismiss();
  }

  private _show(group: IGroup, status: IStatus, wording: IWording): void {
    const { trans } = wording;
    const holder = holderOf(group, status);
    const name = shorten(nameIn(wording.names, group), LONGEST_NAME);
    const place = placeText(group.position, trans);
    const actions: Notification.IAction[] = [
      {
        label: trans.__('Open panel'),
        caption: trans.__(
          'Show which notebooks are running or waiting in the panel'
        ),
        callback: () => run(this._commands, { command: CommandIds.openPanel })
      }
    ];
    let message = trans.__(
      '%1 is waiting for the GPU: %2 in the queue.',
      name,
      place
    );
    if (group.state === 'waking') {
      message = trans.__(
        '%1 is not running yet: %2.',
        name,
        whyText(group, wording)
      );
    } else if (holder) {
      const other = nameIn(wording.names, holder);
      message = trans.__(
        '%1 is waiting for the GPU: %2 in the queue. %3 is using it.',
        name,
        place,
        shorten(other, LONGEST_NAME)
      );
      if (holder.sessions.length > 0) {
        actions.push({
          label: goToLabel(other, trans),
          caption: goToText(other, trans),
          callback: () =>
            run(this._commands, {
              command: CommandIds.goTo,
              args: { group: holder.id }
            })
        });
      }
    }
    this._id = Notification.info(message, { autoClose: false, actions });
  }

  private _dismiss(): void {
    this._wait = '';
    if (this._id) {
      Notification.dismiss(this._id);
      this._id = '';
    }
  }

  private _commands: CommandRegistry;
  private _id = '';
  private _isDisposed = false;
  /** The wait that was last reported. */
  private _wait = '';
}
