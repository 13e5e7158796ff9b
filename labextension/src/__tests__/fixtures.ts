// SPDX-License-Identifier: BSD-3-Clause
import type { TranslationBundle } from '@jupyterlab/translation';
import { nullTranslator } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import { DisposableDelegate } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import { Palette } from '../core/palette';
import type {
  IGroup,
  IPrefetch,
  ISession,
  ISleep,
  ISpan,
  IStatus,
  ITimeline,
  IGroupPreferences
} from '../core/status';
import { isOf } from '../core/status';
import type {
  Hint,
  IAction,
  IGpuShareModel,
  ILookOptions,
  IPreferences
} from '../tokens';

export const GiB = 1024 ** 3;

/** Replace no-break spaces by ordinary ones. */
export function plain(text: string): string {
  return text.replace(/\u00a0/g, ' ');
}

/** English, as JupyterLab has it without a language pack. */
export const trans: TranslationBundle = nullTranslator.load('jupyter_gpushare');

export const PREFERENCES: IPreferences = {
  notify: true,
  notificationDelay: 10,
  history: 5,
  side: 'right',
  units: 'binary',
  statusBar: 'state-and-memory',
  prefetch: true
};

export function makePreferences(
  changes: Partial<IGroupPreferences> = {}
): IGroupPreferences {
  return {
    priority: 'auto',
    keep: false,
    frozen: false,
    on_hold: false,
    memory: 0,
    request: 0,
    limit: 0,
    weight: 1,
    exclusive: false,
    ...changes
  };
}

/** A notebook of this server that uses the kernel. */
export function makeSession(
  path: string,
  kernel: string,
  type = 'notebook'
): ISession {
  return {
    path,
    name: path.slice(path.lastIndexOf('/') + 1),
    type,
    kernel_id: kernel
  };
}

/** A group of the notebook `<id>.ipynb`, whose kernel's id is its own. */
export function makeGroup(id: string, changes: Partial<IGroup> = {}): IGroup {
  return {
    id,
    name: `${id}.ipynb`,
    kind: 'kernel',
    state: 'idle',
    since: 90,
    position: null,
    reason: null,
    yields_in: null,
    estimate: null,
    preferences: makePreferences(),
    class: 'interactive',
    user: 'ada',
    cell: null,
    last_cell: null,
    gpus: [
      {
        uuid: 'GPU-0',
        footprint: 6 * GiB,
        resident: 4 * GiB,
        swapped: 2 * GiB,
        unevictable: GiB,
        context: 0
      }
    ],
    sessions: [makeSession(`${id}.ipynb`, id)],
    totals: {
      bursts: 3,
      waits: 1,
      waited: 2.1,
      ran: 12,
      evicted: 2 * GiB,
      restored: 0
    },
    at: 100,
    ...changes
  };
}

/** A group that is waiting for `train.ipynb`. */
export function makeWaiting(
  id: string,
  position: number,
  changes: Partial<IGroup> = {}
): IGroup {
  return makeGroup(id, {
    state: 'waiting',
    since: 98,
    position,
    reason: {
      code: 'needs_memory',
      params: {
        need: 60 * GiB,
        lack: 15 * GiB,
        holder: 'train',
        holder_name: 'deep/train.ipynb',
        yields_in: 3
      }
    },
    estimate: { seconds: 4, low: 2, high: 9 },
    cell: { msg_id: `${id}-cell`, since: 98, waited: 2, ran: 0 },
    ...changes
  });
}

export function makeSleep(changes: Partial<ISleep> = {}): ISleep {
  return {
    state: 'hibernated',
    since: 90,
    frees: 719 * 1024 ** 2,
    estimate: 1.2,
    code: null,
    text: '',
    ...changes
  };
}

/** A group that is hibernated: it uses no GPU memory. */
export function makeHibernated(
  id: string,
  changes: Partial<IGroup> = {}
): IGroup {
  return makeGroup(id, {
    state: 'hibernated',
    gpus: [
      {
        uuid: 'GPU-0',
        footprint: 6 * GiB,
        resident: 0,
        swapped: 6 * GiB,
        unevictable: 0,
        context: 0
      }
    ],
    hibernation: makeSleep(),
    ...changes
  });
}

/** The same, while its next cell wakes it. */
export function makeWaking(id: string, changes: Partial<IGroup> = {}): IGroup {
  return makeHibernated(id, {
    state: 'waking',
    since: 99.5,
    reason: { code: 'waking', params: { for: 0.5, estimate: 0.7 } },
    cell: { msg_id: `${id}-cell`, since: 99.5, waited: 0.5, ran: 0 },
    hibernation: makeSleep({ state: 'waking', since: 99.5 }),
    ...changes
  });
}

export function makePrefetch(changes: Partial<IPrefetch> = {}): IPrefetch {
  return {
    hint: 'typing',
    likelihood: 0.804,
    stage: 'restoring',
    since: 99,
    ...changes
  };
}

/** A status at second 100, on one GPU. */
export function makeStatus(...groups: IGroup[]): IStatus {
  return {
    stream: 'stream',
    sequence: 1,
    availability: { code: 'ok', params: {} },
    may: { adjust: true, settings: true },
    settings: {
      quantum: 'auto',
      anti_thrash: 'auto',
      policy: 'burst',
      hibernate_after: 600
    },
    hibernation: { able: true, code: null, text: '', moves: false },
    time: 100,
    gpus: [
      {
        uuid: 'GPU-0',
        index: 0,
        name: 'Simulated GPU',
        total: 20 * GiB,
        reserve: 0,
        used: 15 * GiB,
        resident: 4 * GiB,
        unevictable: GiB,
        contexts: GiB,
        foreign: 2 * GiB,
        pending_reclaim: 0,
        free: 5 * GiB,
        utilization: 40,
        draining: false
      }
    ],
    host: { budget: 64 * GiB, swapped: 2 * GiB, promised: 6 * GiB },
    groups,
    notices: [],
    unshared: [],
    timeline: null
  };
}

export function makeSpan(
  id: number,
  group: string,
  changes: Partial<ISpan> = {}
): ISpan {
  return {
    id,
    group,
    name: `${group}.ipynb`,
    kind: 'burst',
    start: 80,
    end: 90,
    gpu: null,
    bytes: 0,
    ...changes
  };
}

export function makeTimeline(...spans: ISpan[]): ITimeline {
  return { start: 0, spans, samples: [] };
}

/** The server's answer that explains which groups are ahead. */
export function explained(
  ...before: { group: string; name: string; code: string; params?: object }[]
): object {
  return {
    explanation: {
      groups: [{ before: before.map(one => ({ params: {}, ...one })) }]
    }
  };
}

/** A model with a state that the test sets. */
export class FakeModel implements IGpuShareModel {
  constructor(status: IStatus | null = null) {
    this._status = status;
    this.now = status?.time ?? 0;
  }

  get status(): IStatus | null {
    return this._status;
  }
  set status(status: IStatus | null) {
    this._status = status;
    this.now = status?.time ?? this.now;
    this.changed.emit();
  }

  get colours(): ReadonlyMap<string, number> {
    return this._palette.coloursOf(this._status ?? makeStatus());
  }

  look(options: ILookOptions = {}): IDisposable {
    this.looks.push(options);
    return new DisposableDelegate(() => {
      this.looks.splice(this.looks.indexOf(options), 1);
    });
  }

  groupOf(kernelId: string | null | undefined): IGroup | null {
    return this._status?.groups.find(group => isOf(group, kernelId)) ?? null;
  }

  act(action: IAction): Promise<void> {
    this.acts.push(action);
    return this.refusal
      ? Promise.reject(new Error(this.refusal))
      : Promise.resolve();
  }

  focus(kernelId: string | null, hint?: Hint): void {
    this.fronts.push(kernelId);
    this.hints.push(hint ?? null);
  }

  explain(group: string): Promise<unknown> {
    this.explained.push(group);
    return Promise.resolve(this.explanation);
  }

  /** The actions that were sent. */
  readonly acts: IAction[] = [];
  readonly changed = new Signal<this, void>(this);
  /** The groups whose explanation was requested, and the server's answer. */
  readonly explained: string[] = [];
  explanation: unknown = null;
  /** The active kernels that were reported. */
  readonly fronts: (string | null)[] = [];
  /** The hint in each of these reports; null if there was none. */
  readonly hints: (Hint | null)[] = [];
  /** The views that are visible. */
  readonly looks: ILookOptions[] = [];
  now: number;
  preferences = PREFERENCES;
  /** The message with which the server refuses actions; '' if it accepts them. */
  refusal = '';
  private _palette = new Palette();
  private _status: IStatus | null;
}
