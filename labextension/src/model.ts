// SPDX-License-Identifier: BSD-3-Clause
import { URLExt } from '@jupyterlab/coreutils';
import type { Event } from '@jupyterlab/services';
import { ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import type { ICode, IStatus } from './status';

/** The hints that the server emits when something changed. */
export const SCHEMA_ID =
  'https://events.jupyter.org/jupyter_gpushare/changed/v1';

/** While hints arrive nobody needs this: a lost connection loses hints without a sign. */
const SAFETY_INTERVAL = 30_000;

const FIRST_RETRY = 2_000;

/**
 * The state of the GPU as the server tells it.
 *
 * The server pushes hints that something changed, and the model asks what. It asks
 * nothing while it is not active.
 */
export class StatusModel implements IDisposable {
  constructor(options: StatusModel.IOptions) {
    this._settings = options.serverSettings;
    this._events = options.events;
  }

  /** Emitted when there is a new status. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The last status, or null before the first. */
  get status(): IStatus | null {
    return this._status;
  }

  /** Seconds since the status was made. */
  get elapsed(): number {
    return (performance.now() - this._received) / 1000;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Whether somebody looks. */
  get active(): boolean {
    return this._active;
  }
  set active(value: boolean) {
    if (value === this._active || this._isDisposed) {
      return;
    }
    this._active = value;
    if (value) {
      this._events.stream.connect(this._onEvent, this);
      this.refresh();
    } else {
      this._events.stream.disconnect(this._onEvent, this);
      window.clearTimeout(this._timer);
    }
  }

  /** Ask for the status; one request at a time, and one more if this comes meanwhile. */
  refresh(): void {
    if (this._asking) {
      this._again = true;
      return;
    }
    this._asking = true;
    void this._ask().finally(() => {
      this._asking = false;
      const again = this._again;
      this._again = false;
      if (!this._active) {
        return;
      }
      if (again) {
        this.refresh();
      } else {
        this._schedule();
      }
    });
  }

  dispose(): void {
    if (!this._isDisposed) {
      this.active = false;
      this._isDisposed = true;
      Signal.clearData(this);
    }
  }

  private async _ask(): Promise<void> {
    let failure: ICode;
    try {
      const response = await ServerConnection.makeRequest(
        URLExt.join(this._settings.baseUrl, 'gpushare/api/status'),
        { cache: 'no-store' },
        this._settings
      );
      if (response.ok) {
        this._set((await response.json()) as IStatus);
        this._retry = FIRST_RETRY;
        return;
      }
      failure = await failureOf(response);
    } catch (error) {
      failure = {
        code: 'server_unreachable',
        params: { error: String(error) }
      };
    }
    // A server that does not answer for a moment leaves what is known in place.
    const known = failure.code === 'server_unreachable' ? this._status : null;
    this._set({ ...(known ?? NOTHING), availability: failure });
    this._retry = Math.min(2 * this._retry, SAFETY_INTERVAL);
  }

  private _set(status: IStatus): void {
    if (this._isDisposed) {
      return;
    }
    if (status.time !== this._status?.time) {
      this._received = performance.now();
    }
    this._status = status;
    this._changed.emit();
  }

  private _schedule(): void {
    window.clearTimeout(this._timer);
    const failed = this._retry > FIRST_RETRY;
    this._timer = window.setTimeout(
      () => this.refresh(),
      failed ? this._retry : SAFETY_INTERVAL
    );
  }

  private _onEvent(_: unknown, event: Event.Emission): void {
    if (event.schema_id !== SCHEMA_ID) {
      return;
    }
    // Anybody who may post events can send a wrong number: all that it can do is to
    // make us ask, or to be taken for old, which the next hint or the timer mends.
    const sequence = Number(event['sequence']);
    if (this._asking || !(sequence <= (this._status?.hint ?? -1))) {
      this.refresh();
    }
  }

  private _active = false;
  private _again = false;
  private _asking = false;
  private _changed = new Signal<this, void>(this);
  private _events: Event.IManager;
  private _isDisposed = false;
  private _received = performance.now();
  private _retry = FIRST_RETRY;
  private _settings: ServerConnection.ISettings;
  private _status: IStatus | null = null;
  private _timer = 0;
}

export namespace StatusModel {
  export interface IOptions {
    serverSettings: ServerConnection.ISettings;
    events: Event.IManager;
  }
}

const NOTHING: IStatus = {
  availability: { code: 'ok', params: {} },
  hint: -1,
  time: 0,
  gpus: [],
  host: null,
  groups: [],
  notices: []
};

async function failureOf(response: Response): Promise<ICode> {
  switch (response.status) {
    case 401:
    case 403:
      return { code: 'forbidden', params: {} };
    case 404:
      return { code: 'server_extension_missing', params: {} };
    case 502:
    case 503:
    case 504:
      return { code: 'server_unreachable', params: {} };
    default: {
      const { message } = await ServerConnection.ResponseError.create(response);
      return { code: 'error', params: { error: message } };
    }
  }
}
