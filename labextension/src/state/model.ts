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
  IAction,
  IGpuShareModel,
  ILookOptions,
  IPreferences
} from '../tokens';
import { Requests } from './requests';

/** Announces on the event bus that there are new deltas; what they say is fetched. */
export const SCHEMA_ID =
  'https://events.jupyter.org/jupyter_gpushare/changed/v1';

/** The shortest time between two requests for deltas: the server may announce ten a second. */
const PACE = 250;

/** The server says something every 5 s; a lost connection loses events without a sign. */
const SILENCE = 15_000;

/** How often to ask a server whose events do not come. */
const DEAF = 5_000;

/** The longest pause between two attempts while the server does not answer. */
const LONGEST_RETRY = 30_000;

/** The server forgets who has not asked for 60 s. */
const RENEWAL = 45_000;

/** How long nobody may look before the server is told: a panel that moves is shown again. */
const GRACE = 1_000;

/** The pause after a request that a wrong announcement caused: anybody can post those. */
const CALM = 1_000;

/** A clock that differs by more than this, in seconds, was moved, or slept. */
const JUMP = 1;

/**
 * The state of the GPUs as the server tells it.
 *
 * While somebody looks at the visible page, it asks once for the whole state, and then
 * fetches the deltas that the server announces. It asks nothing while nobody looks.
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

  /** Whether somebody looks, so that the server is asked. */
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

  focus(kernelId: string | null): void {
    this._requests.focus(kernelId);
  }

  explain(group: string): Promise<unknown> {
    return this._requests.explain(group);
  }

  /** Ask for the whole state; one request at a time, and one more if this comes meanwhile. */
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

  /** Begin, or end in a moment, as people look or no longer do. */
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

  /** Take a whole state, and ask for what was announced while it was on its way. */
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
    // A server that does not answer for a moment leaves what is known in place.
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
      this._askCalmly();
      return;
    }
    this._announced = announcement;
    // While the whole state is on its way, it may be older than this, or newer.
    if (!this._asking) {
      this._follow();
    }
  }

  /** Fetch the deltas that were announced: once for all that are announced meanwhile. */
  private _follow(): void {
    const announced = this._announced;
    const status = this._status;
    if (!announced || !status || !this._active) {
      return;
    }
    if (announced.stream !== status.stream) {
      this._announced = null;
      this._askCalmly();
    } else if (announced.sequence <= status.sequence) {
      this._announced = null;
      if (announced.sequence === status.sequence) {
        this._hear();
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
      // The request for the whole state finds out what is wrong.
      this._announced = null;
      this._askCalmly();
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
      // It is of another server, or not all that is missing is kept there.
      this._announced = null;
      this._askCalmly();
    } else if (answer?.sequence === since) {
      // There was nothing new, though somebody announced it.
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
      this._hear();
      this._emit();
    }
  }

  /** Note that the server is there, and that its events come. */
  private _hear(): void {
    this._heard = performance.now();
    this._deaf = false;
  }

  /** Ask, but not all the time: anybody may post wrong announcements, and a server may stay unwell. */
  private _askCalmly(): void {
    if (this._active && !this._calm.isSet) {
      const rest = Math.min(CALM * 2 ** this._failures, LONGEST_RETRY);
      this._calm.set(this._calmed + rest - performance.now());
    }
  }

  private _onCalm(): void {
    this._calmed = performance.now();
    this.refresh();
  }

  /** Ask again when it is time to. */
  private _schedule(): void {
    if (this._active) {
      this._next.set(this._due - performance.now());
    }
  }

  private get _due(): number {
    if (this._failures > 0) {
      const pause = Math.min(DEAF * 2 ** (this._failures - 1), LONGEST_RETRY);
      return this._failed + pause;
    }
    const silence = this._heard + (this._deaf ? DEAF : SILENCE);
    return Math.min(silence, this._asked + RENEWAL);
  }

  private _onNext(): void {
    const now = performance.now();
    if (now < this._due) {
      // Something came since the timer was set.
      this._schedule();
      return;
    }
    this._deaf ||= now >= this._heard + SILENCE;
    this.refresh();
  }

  private _onVisibility = (): void => this._update();

  private _onOnline = (): void => {
    if (this._active) {
      this.refresh();
    }
  };

  /** Somebody else's request failed; if ours fails too, it is repeated in its own time. */
  private _onFailure(): void {
    if (this._active && this._failures === 0) {
      this.refresh();
    }
  }

  private _setClock(time: number, anew: boolean): void {
    this._stopped = null;
    const offset = time - performance.now() / 1000;
    // The message that was under way for the shortest time is the most exact.
    this._offset =
      anew || Math.abs(offset - this._offset) > JUMP
        ? offset
        : Math.max(offset, this._offset);
  }

  /** Say that there is news, once for each picture that the page draws. */
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
  /** The last announcement, until its deltas are here. */
  private _announced: IAnnouncement | null = null;
  private _asked = 0;
  private _asking = false;
  /** For a request that a wrong announcement or a failure causes. */
  private _calm = new Timer(() => this._onCalm());
  private _calmed = -Infinity;
  private _changed = new Signal<this, void>(this);
  private _deaf = false;
  private _failed = 0;
  private _failures = 0;
  private _fetching = false;
  private _followed = -Infinity;
  /** For a request for deltas. */
  private _following = new Timer(() => this._onFollowing());
  private _frame = 0;
  private _grace = new Debouncer(() => this._end(), GRACE);
  private _heard = 0;
  private _isDisposed = false;
  private _looks = new Set<ILookOptions>();
  /** For the next request for the whole state that nothing else causes. */
  private _next = new Timer(() => this._onNext());
  private _offset = 0;
  private _options: GpuShareModel.IOptions;
  /** Milliseconds between two requests for deltas, at least. */
  private _pace = PACE;
  private _palette = new Palette();
  private _preferences: IPreferences;
  private _requests: Requests;
  private _status: IStatus | null = null;
  private _stopped: number | null = null;
  /** After those that it lists. */
  private _timers = [this._calm, this._following, this._next];
}

export namespace GpuShareModel {
  export interface IOptions {
    serverSettings: ServerConnection.ISettings;
    events: Pick<Event.IManager, 'stream'>;
    /** Emitted when some request of the page failed. */
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
