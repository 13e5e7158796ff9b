// SPDX-License-Identifier: BSD-3-Clause
import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';

/**
 * Calls back once, when a pause is over.
 *
 * A `Poll` repeats in one rhythm, and a `Debouncer` has one pause; this has another pause each time.
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

  /** Whether it will call back. */
  get isSet(): boolean {
    return this._isSet;
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  /** Call back after some milliseconds, instead of when it was set to. */
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
