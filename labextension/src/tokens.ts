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
  /** What people set; read it again when `changed` comes. */
  readonly preferences: IPreferences;
  /**
   * Keep the state up to date until the returned object is disposed. It costs nothing
   * while the page is hidden.
   */
  look(options?: ILookOptions): IDisposable;
  /** The group of a kernel, or null if the kernel has not used the GPU. */
  groupOf(kernelId: string | null | undefined): IGroup | null;
  /**
   * Ask the server to do something.
   *
   * @throws Error - with the server's sentence, if it refuses or does not answer.
   */
  act(action: IAction): Promise<void>;
  /** Tell the server whose document is in front here; null: none, or the page has not the focus. */
  focus(kernelId: string | null): void;
  /** What the server says of why a group stands where it does; null if it says nothing. */
  explain(group: string): Promise<unknown>;
}

export const IGpuShareModel = new Token<IGpuShareModel>(
  'jupyter-gpushare:IGpuShareModel',
  'The state of the GPUs that notebooks share, and the actions on it.'
);

/** What is wanted of the state. */
export interface ILookOptions {
  timeline?: boolean;
  /** Minutes of the timeline, if they are to be more than people set as its history. */
  minutes?: number;
}

export type IAction =
  | { op: 'release' | 'evict' | 'hibernate' | 'wake'; group: string }
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

/** What people set in JupyterLab's settings editor (schema/plugin.json). */
export interface IPreferences {
  /** Whether a notification comes when a cell waits for the GPU, and after how many seconds. */
  notify: boolean;
  notificationDelay: number;
  /** Minutes of the timeline. */
  history: number;
  side: 'left' | 'right';
  units: Units;
  statusBar: 'state' | 'state-and-memory' | 'none';
}

/**
 * The commands. Each takes `{ group }`, a group's id; without it, it means the notebook
 * or console in front.
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
  /** End the burst and move the memory to the host; asks first. */
  export const evict = 'gpushare:evict';
  /** Take a notebook that is idle off the GPU altogether. */
  export const hibernate = 'gpushare:hibernate';
  /** Wake it before its next cell does. */
  export const wake = 'gpushare:wake';
  /** `{ priority }`: 'interactive', 'background' or 'auto'. */
  export const setPriority = 'gpushare:set-priority';
  /** Keep the memory on the GPU, or no longer. */
  export const toggleKeep = 'gpushare:toggle-keep';
  /** Freeze, or unfreeze; freezing asks first. */
  export const toggleFrozen = 'gpushare:toggle-frozen';
  /** Set a cap to its memory; asks for it. */
  export const setMemory = 'gpushare:set-memory';
  /** `{ anti_thrash }`: 'auto', 'on' or 'off'; 'on' and 'off' ask first. */
  export const setAntiThrash = 'gpushare:set-anti-thrash';
  /** Set the quantum; asks for it. */
  export const setQuantum = 'gpushare:set-quantum';
  /** Hibernate notebooks that are idle, or no longer. */
  export const toggleHibernation = 'gpushare:toggle-hibernation';
  /** `{ hibernate_after }`: seconds, 0: never; asks for it. */
  export const setHibernation = 'gpushare:set-hibernation';
  /** Choose the policy; asks for it. */
  export const setPolicy = 'gpushare:set-policy';
}

/** The documents of this page, and what they have to do with the groups. */
export interface IDocuments {
  /** Emitted when a name changed, or another document came to the front. */
  readonly changed: ISignal<IDocuments, void>;
  /** The kernel of the notebook or console in front, or of the last one that was. */
  readonly currentKernel: string | null;
  /** The group of that kernel. */
  readonly currentGroup: IGroup | null;
  /** The documents that use a group's kernel, as the page knows them. */
  of(group: Pick<IGroup, 'id' | 'sessions'>): ISession[];
  /** What the groups are called; the same object until a name changes. */
  names(status: IStatus): Names;
}

export const IDocuments = new Token<IDocuments>(
  'jupyter-gpushare:IDocuments',
  'What the documents of the page have to do with the GPUs that they share.'
);
