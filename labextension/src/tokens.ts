// SPDX-License-Identifier: BSD-3-Clause
import { Token } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';

import type { Units } from './core/format';
import type {
  AntiThrash,
  IGroup,
  ISession,
  IStatus,
  Priority
} from './core/status';
import type { Names } from './words/names';

export type { Units } from './core/format';
export type * from './core/status';
export type { Names } from './words/names';

/** The state of the shared GPUs as this page knows it. */
export interface IGpuShareModel {
  /** The state, or null before the first answer. A new object after each change. */
  readonly status: IStatus | null;
  /** Emitted when there is a new status. */
  readonly changed: ISignal<IGpuShareModel, void>;
  /**
   * The colour of each notebook of the status and its timeline, by the group's id: a number
   * below `COLOURS`. It is the same in all views.
   */
  readonly colours: ReadonlyMap<string, number>;
  /** The scheduler's clock now, in seconds, as far as this page can tell. */
  readonly now: number;
  /** The user's settings; read them again when `changed` is emitted. */
  readonly preferences: IPreferences;
  /**
   * Keep the state up to date until the returned object is disposed. It costs nothing
   * while the page is hidden.
   */
  look(options?: ILookOptions): IDisposable;
  /** The group of a kernel, or null if the kernel has not used the GPU. */
  groupOf(kernelId: string | null | undefined): IGroup | null;
  /**
   * Send an action to the server.
   *
   * @throws Error - if the server refuses or does not respond; its message explains why.
   */
  act(action: IAction): Promise<void>;
  /**
   * Report the kernel of the active document to the server; null if there is none or the page does not have the focus.
   *
   * @param hint - The sign that the user will soon use the GPU in it, if this is one.
   */
  focus(kernelId: string | null, hint?: Hint): void;
  /** The server's explanation of a group's place in the queue; null if there is none. */
  explain(group: string): Promise<unknown>;
}

export const IGpuShareModel = new Token<IGpuShareModel>(
  'jupyter-gpushare:IGpuShareModel',
  'The state of the GPUs that notebooks share, and the actions on it.'
);

/** Signs that a user will soon use the GPU in a notebook: it came to the front, or the user began to type in it. */
export type Hint = 'focus' | 'typing';

/** The parts of the state that a view needs. */
export interface ILookOptions {
  timeline?: boolean;
  /** Minutes of the timeline, if more than the setting `history`. */
  minutes?: number;
}

export type IAction =
  | {
      op: 'release' | 'evict' | 'hibernate' | 'wake' | 'ready';
      group: string;
    }
  | {
      op: 'adjust';
      group: string;
      priority?: Priority;
      keep?: boolean;
      frozen?: boolean;
      memory?: number;
    }
  | {
      op: 'settings';
      quantum?: number | 'auto';
      anti_thrash?: AntiThrash;
      policy?: string;
      /** 0: never. */
      hibernate_after?: number;
    };

/** The user's settings in JupyterLab's settings editor (schema/plugin.json). */
export interface IPreferences {
  /** Whether a notification is shown when a cell waits for the GPU, and after how many seconds. */
  notify: boolean;
  notificationDelay: number;
  /** Minutes of the timeline. */
  history: number;
  side: 'left' | 'right';
  units: Units;
  statusBar: 'state' | 'state-and-memory' | 'none';
  /** Whether the page reports to the server that the user has returned to a notebook whose memory is not on the GPU. */
  prefetch: boolean;
}

/**
 * The commands. The argument `{ group }` is a group's id; the default is the active notebook
 * or console.
 */
export namespace CommandIds {
  /** Show the panel. */
  export const openPanel = 'gpushare:open-panel';
  /** `{ minutes }`: show the timeline in the main area. JupyterLab only. */
  export const openTimeline = 'gpushare:open-timeline';
  /** Go to the notebook. */
  export const goTo = 'gpushare:go-to';
  /** End the burst, so that others can run. */
  export const release = 'gpushare:release';
  /** End the burst and evict the memory to the host; asks first. */
  export const evict = 'gpushare:evict';
  /** Hibernate an idle notebook: remove it from the GPU completely. */
  export const hibernate = 'gpushare:hibernate';
  /** Wake a hibernated notebook before its next cell does. */
  export const wake = 'gpushare:wake';
  /** Restore the memory now instead of at the next cell. */
  export const ready = 'gpushare:ready';
  /** `{ priority }`: 'interactive', 'agent', 'background' or 'auto'. */
  export const setPriority = 'gpushare:set-priority';
  /** Turn keeping the memory on the GPU on or off. */
  export const toggleKeep = 'gpushare:toggle-keep';
  /** Freeze, or unfreeze; freezing asks first. */
  export const toggleFrozen = 'gpushare:toggle-frozen';
  /** Limit the memory; asks for the size. */
  export const setMemory = 'gpushare:set-memory';
  /** `{ anti_thrash }`: 'auto', 'on' or 'off'; 'on' and 'off' ask first. */
  export const setAntiThrash = 'gpushare:set-anti-thrash';
  /** Set the time slice; asks for it. */
  export const setQuantum = 'gpushare:set-quantum';
  /** Turn the hibernation of idle notebooks on or off. */
  export const toggleHibernation = 'gpushare:toggle-hibernation';
  /** `{ hibernate_after }`: seconds, 0: never; asks for it. */
  export const setHibernation = 'gpushare:set-hibernation';
  /** Choose the policy; asks for it. */
  export const setPolicy = 'gpushare:set-policy';
}

/** The documents of this page, and the groups that they belong to. */
export interface IDocuments {
  /** Emitted when a name changes, or another document becomes active. */
  readonly changed: ISignal<IDocuments, void>;
  /** The kernel of the active notebook or console, or of the last active one. */
  readonly currentKernel: string | null;
  /** The group of that kernel. */
  readonly currentGroup: IGroup | null;
  /** The documents that use a group's kernel, as the page knows them. */
  of(group: Pick<IGroup, 'id' | 'sessions'>): ISession[];
  /** The names of the groups, by their ids; the same object until a name changes. */
  names(status: IStatus): Names;
}

export const IDocuments = new Token<IDocuments>(
  'jupyter-gpushare:IDocuments',
  'The documents of the page, and the groups that they belong to.'
);
