// SPDX-License-Identifier: BSD-3-Clause
import type { Event } from '@jupyterlab/services';
import type { ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { DisposableDelegate } from '@lumino/disposable';
import { Debouncer } from '@lumino/polling';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import { Palette } from '../core/palette';
import { Timer } from '../core/timer';
import type { ITranslation } from '../core/translation';
import { applyDelta, keepSame, readAnnouncement, trim } from '../core/delta';
import type {
  IAnnouncement,
  ICode,
  IDelta,
  IGroup,
  IStatus
} from '../core/status';
import { isOf } from '../core/status';
import type {
  Hint,
  IAction,
  IGpuShareModel,
  ILookOptions,
  IPreferences
} from '../tokens';
import { Requests } from './requests';

/** The event that announces new deltas. It does not contain them, so they are fetched. */
export const SCHEMA_ID =
  'https://events.jupyter.org/jupyter_gpushare/changed/v1';

/** The shortest time between two requests for deltas. The server may announce ten a second. */
const PACE = 250;

/** The longest time without an event. The server sends one every 5 s, and a lost connection is not reported. */
const SILENCE = 15_000;

/** The time between two requests while no events arrive. */
const SILENT_PAUSE = 5_000;

/** The longest time between two attempts while the server does not respond. */
const LONGEST_RETRY = 30_000;

/** The longest time between two requests. The registration as a watcher expires after 60 s. */
const RENEWAL = 45_000;

/** The delay before the registration ends when nothing is visible. A panel that is moved is hidden for a moment. */
const GRACE = 1_000;

/** The pause after a request that an invalid announcement caused. Any client can post those. */
const CALM = 1_000;

/** A clock that differs by more seconds than this was changed, or the computer slept. */
const JUMP = 1;

/**
 * The state of the GPUs as reported by the server.
 *
 * While a view is visible, the model requests the whole state once, and then the deltas that
 * the server announces. It sends no requests while nothing is visible.
 */
export class GpuShareModel implements IGpuShareModel, IDisposable {
  constructor(options: GpuShareModel.IOptions) {
    this._options = options;
    this._requests = new Requests(options.serverSettings, options.trans);
    this._preferences = options.preferences;
    document.addEventListener('visibilitychange', this._onVisibility);
    window.addEventListener('online', this._onOnline);
    options.connectionFailure?.connect(this._onFailure, this);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get status(): IStatus | null {
    return this._status;
  }

  get colours(): ReadonlyMap<string, number> {
    return this._palette.coloursOf(this._status ?? NOTHING);
  }

  get now(): number {
    return this._stopped ?? performance.now() / 1000 + this._offset;
  }

  get preferences(): IPreferences {
    return this._preferences;
  }
  set preferences(value: IPreferences) {
    this._preferences = value;
    this._emit();
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Whether a view is visible, so that the model sends requests. */
  get isActive(): boolean {
    return this._active;
  }

  look(options: ILookOptions = {}): IDisposable {
    const known = this._wantsTimeline ? this._history : 0;
    this._looks.add(options);
    if (this._active && this._wantsTimeline && this._history > known) {
      this.refresh();
    }
    this._update();
    return new DisposableDelegate(() => {
      this._looks.delete(options);
      this._update();
    });
  }

  groupOf(kernelId: string | null | undefined): IGroup | null {
    return this._status?.groups.find(group => isOf(group, kernelId)) ?? null;
  }

  async act(action: IAction): Promise<void> {
    await this._requests.act(action);
    if (this._active) {
      this.refresh();
    }
  }

  focus(kernelId: string | null, hint?: Hint): void {
    this._requests.focus(kernelId, hint);
  }

  explain(group: string): Promise<unknown> {
    return this._requests.explain(group);
  }

  /** Request the whole state. During a request, this schedules one more. */
  refresh(): void {
    if (this._isDisposed) {
      return;
    }
    if (this._asking) {
      this._again = true;
      return;
    }
    this._asking = true;
    void this._ask().finally(() => {
      this._asking = false;
      const again = this._again;
      this._again = false;
      if (this._active && again) {
        this.refresh();
      } else {
        this._schedule();
      }
    });
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._looks.clear();
    this._end();
    this._isDisposed = true;
    document.removeEventListener('visibilitychange', this._onVisibility);
    window.removeEventListener('online', this._onOnline);
    this._grace.dispose();
    for (const timer of this._timers) {
      timer.dispose();
    }
    window.cancelAnimationFrame(this._frame);
    Signal.clearData(this);
  }

  private get _wantsTimeline(): boolean {
    return [...this._looks].some(({ timeline }) => timeline);
  }

  /** Start when a view becomes visible, and stop soon after the last one is hidden. */
  private _update(): void {
    const wanted = this._looks.size > 0 && !document.hidden;
    if (wanted) {
      void this._grace.stop();
    }
    if (wanted && !this._active) {
      this._active = true;
      this._options.events.stream.connect(this._onEvent, this);
      this.refresh();
    } else if (!wanted && this._active) {
      void this._grace.invoke();
    }
  }

  private _end(): void {
    if (!this._active) {
      return;
    }
    this._active = false;
    this._options.events.stream.disconnect(this._onEvent, this);
    for (const timer of this._timers) {
      timer.stop();
    }
    this._requests.leave();
  }

  private async _ask(): Promise<void> {
    const answer = await this._requests.status(this._wantsTimeline);
    if ('code' in answer) {
      this._fail(answer);
    } else {
      this._take(answer);
    }
  }

  /** Take over a whole state, and request the deltas that were announced in the meantime. */
  private _take(answer: IStatus): void {
    this._failures = 0;
    this._setClock(answer.time, answer.stream !== this._status?.stream);
    this._status = keepSame(this._status, {
      ...answer,
      timeline:
        answer.timeline && trim(answer.timeline, answer.time - this._history)
    });
    this._asked = this._heard = performance.now();
    this._emit();
    this._follow();
  }

  private _fail(failure: ICode): void {
    this._failures++;
    this._failed = performance.now();
    // Keep the last state while the server does not respond.
    const known = failure.code === 'server_unreachable' ? this._status : null;
    this._stopped ??= this.now;
    this._status = { ...(known ?? NOTHING), availability: failure };
    this._emit();
  }

  private _onEvent(_: unknown, event: Event.Emission): void {
    if (event.schema_id !== SCHEMA_ID) {
      return;
    }
    const announcement = readAnnouncement(event);
    if (!announcement || this._failures > 0) {
      this._askLater();
      return;
    }
    this._announced = announcement;
    // During a request, the whole state may turn out to be newer than this.
    if (!this._asking) {
      this._follow();
    }
  }

  /** Fetch the announced deltas; one request for all that are announced until then. */
  private _follow(): void {
    const announced = this._announced;
    const status = this._status;
    if (!announced || !status || !this._active) {
      return;
    }
    if (announced.stream !== status.stream) {
      this._announced = null;
      this._askLater();
    } else if (announced.sequence <= status.sequence) {
      this._announced = null;
      if (announced.sequence === status.sequence) {
        this._noteEvent();
      }
    } else if (!this._fetching && !this._following.isSet) {
      this._following.set(this._followed + this._pace - performance.now());
    }
  }

  private _onFollowing(): void {
    this._followed = performance.now();
    this._fetching = true;
    void this._fetch().finally(() => {
      this._fetching = false;
      if (!this._asking) {
        this._follow();
      }
    });
  }

  private async _fetch(): Promise<void> {
    const sequence = this._status?.sequence ?? 0;
    try {
      const answer = await this._requests.changes(sequence);
      if (this._active) {
        this._takeChanges(answer, sequence);
      }
    } catch {
      // The request for the whole state shows what is wrong.
      this._announced = null;
      this._askLater();
    }
  }

  private _takeChanges(
    answer: (IAnnouncement & { deltas: IDelta[] }) | null,
    since: number
  ): void {
    answer?.deltas.forEach(delta => this._apply(delta));
    const status = this._status;
    if (
      answer?.stream !== status?.stream ||
      (answer?.sequence ?? 0) > (status?.sequence ?? 0)
    ) {
      // The answer is from another server process, or some deltas are no longer kept.
      this._announced = null;
      this._askLater();
    } else if (answer?.sequence === since) {
      // The announcement was wrong.
      this._announced = null;
      this._pace = CALM;
    } else {
      this._pace = PACE;
    }
  }

  private _apply(delta: IDelta): void {
    const status = this._status;
    if (
      status &&
      delta.stream === status.stream &&
      delta.sequence === status.sequence + 1
    ) {
      this._setClock(delta.time, false);
      this._status = applyDelta(status, delta, this._history);
      this._noteEvent();
      this._emit();
    }
  }

  /** Note that events arrive. */
  private _noteEvent(): void {
    this._heard = performance.now();
    this._isSilent = false;
  }

  /** Request the state at a limited rate, because wrong announcements and failures may continue. */
  private _askLater(): void {
    if (this._active && !this._calm.isSet) {
      const rest = Math.min(CALM * 2 ** this._failures, LONGEST_RETRY);
      this._calm.set(this._calmed + rest - performance.now());
    }
  }

  private _onCalm(): void {
    this._calmed = performance.now();
    this.refresh();
  }

  /** Schedule the next request. */
  private _schedule(): void {
    if (this._active) {
      this._next.set(this._due - performance.now());
    }
  }

  private get _due(): number {
    if (this._failures > 0) {
      const pause = Math.min(
        SILENT_PAUSE * 2 ** (this._failures - 1),
        LONGEST_RETRY
      );
      return this._failed + pause;
    }
    const silence = this._heard + (this._isSilent ? SILENT_PAUSE : SILENCE);
    return Math.min(silence, this._asked + RENEWAL);
  }

  private _onNext(): void {
    const now = performance.now();
    if (now < this._due) {
      // An event has arrived since the timer was set.
      this._schedule();
      return;
    }
    this._isSilent ||= now >= this._heard + SILENCE;
    this.refresh();
  }

  private _onVisibility = (): void => this._update();

  private _onOnline = (): void => {
    if (this._active) {
      this.refresh();
    }
  };

  /** Another request of the page failed, so check the connection. */
  private _onFailure(): void {
    if (this._active && this._failures === 0) {
      this.refresh();
    }
  }

  private _setClock(time: number, isNew: boolean): void {
    this._stopped = null;
    const offset = time - performance.now() / 1000;
    // The message with the shortest delay gives the most exact offset.
    this._offset =
      isNew || Math.abs(offset - this._offset) > JUMP
        ? offset
        : Math.max(offset, this._offset);
  }

  /** Emit `changed`, at most once for each frame that the browser draws. */
  private _emit(): void {
    if (this._frame === 0 && !this._isDisposed) {
      this._frame = window.requestAnimationFrame(() => {
        this._frame = 0;
        this._changed.emit();
      });
    }
  }

  /** Seconds of the timeline that are kept. */
  private get _history(): number {
    const minutes = [...this._looks].map(({ minutes }) => minutes ?? 0);
    return 60 * Math.max(this._preferences.history, ...minutes);
  }

  private _active = false;
  private _again = false;
  /** The last announcement, until its deltas have been fetched. */
  private _announced: IAnnouncement | null = null;
  private _asked = 0;
  private _asking = false;
  /** Timer for a request after a wrong announcement or a failure. */
  private _calm = new Timer(() => this._onCalm());
  private _calmed = -Infinity;
  private _changed = new Signal<this, void>(this);
  private _failed = 0;
  private _failures = 0;
  private _fetching = false;
  private _followed = -Infinity;
  /** Timer for the next request for deltas. */
  private _following = new Timer(() => this._onFollowing());
  private _frame = 0;
  private _grace = new Debouncer(() => this._end(), GRACE);
  private _heard = 0;
  private _isDisposed = false;
  private _isSilent = false;
  private _looks = new Set<ILookOptions>();
  /** Timer for the next regular request for the whole state. */
  private _next = new Timer(() => this._onNext());
  private _offset = 0;
  private _options: GpuShareModel.IOptions;
  /** The shortest time between two requests for deltas, in milliseconds. */
  private _pace = PACE;
  private _palette = new Palette();
  private _preferences: IPreferences;
  private _requests: Requests;
  private _status: IStatus | null = null;
  private _stopped: number | null = null;
  /** Declared after the timers that it contains. */
  private _timers = [this._calm, this._following, this._next];
}

export namespace GpuShareModel {
  export interface IOptions {
    serverSettings: ServerConnection.ISettings;
    events: Pick<Event.IManager, 'stream'>;
    /** Emitted when any request of the page fails. */
    connectionFailure?: ISignal<unknown, Error>;
    preferences: IPreferences;
    trans: ITranslation;
  }
}

const NOTHING: IStatus = {
  stream: '',
  sequence: -1,
  availability: { code: 'ok', params: {} },
  may: { adjust: false, settings: false },
  settings: null,
  hibernation: null,
  time: 0,
  gpus: [],
  host: null,
  groups: [],
  notices: [],
  unshared: [],
  timeline: null
};
