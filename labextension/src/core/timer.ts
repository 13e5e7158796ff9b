// SPDX-License-Identifier: BSD-3-Clause
import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';

/**
 * Calls back once after a pause.
 *
 * Unlike with a `Poll` or a `Debouncer`, the length of the pause can differ each time.
 */
export class Timer implements IDisposable {
  constructor(callback: () => void) {
    this._poll = new Poll({
      auto: false,
      factory: () => {
        this._isSet = false;
        callback();
        return Promise.resolve();
      },
      frequency: { backoff: false, interval: Poll.NEVER, max: Poll.NEVER },
      standby: 'never'
    });
  }

  /** Whether a call is scheduled. */
  get isSet(): boolean {
    return this._isSet;
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  /** Call back after some milliseconds. This replaces an earlier schedule. */
  set(pause: number): void {
    this._isSet = !this.isDisposed;
    void this._poll.schedule({ interval: Math.max(0, pause) });
  }

  stop(): void {
    this._isSet = false;
    void this._poll.stop();
  }

  dispose(): void {
    this._isSet = false;
    this._poll.dispose();
  }

  private _isSet = false;
  private _poll: Poll;
}
