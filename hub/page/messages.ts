// SPDX-License-Identifier: BSD-3-Clause
import type { ISettings, State } from '../../labextension/src/core/status';

/** What the service sends (`view.py`). Sizes are bytes, times and durations seconds. */
export interface IViewer {
  may_act: boolean;
  sees_all: boolean;
}

/** Kinds of memory, in the order in which they are stacked. */
export type Kind =
  | 'resident'
  | 'unevictable'
  | 'contexts'
  | 'foreign'
  | 'pending_reclaim'
  | 'free'
  | 'swapped';

export interface IGpu {
  uuid: string;
  index: number;
  name: string;
  total: number;
  used: number;
  utilization: number | null;
  draining: boolean;
  memory: Partial<Record<Kind, number>>;
}

/** What a user has, on GPUs and in host memory. */
export interface IMemory {
  resident: number;
  unevictable: number;
  swapped: number;
}

export interface INotebook {
  id: string;
  name: string;
  /** '' for another user, whose name the viewer may not know. */
  user: string;
  mine: boolean;
  state: State;
  position: number | null;
  /** The service's clock when it began. */
  since: number | null;
  why: string;
  preferences: string;
  /** An administrator put it on hold. */
  on_hold: boolean;
  gpus: (number | null)[];
  memory: IMemory;
  ran: number;
  waited: number;
  waits: number;
}

export interface IUser {
  name: string;
  mine: boolean;
  notebooks: number;
  waiting: number;
  waits: number;
  waited: number;
  ran: number;
  memory: IMemory;
  /** Fractions of one GPU's time. */
  share: number | null;
  limit: number | null;
  quota: string;
}

/** An event on a node, or an action of a user. */
export interface IEntry {
  time: number;
  text: string;
  key?: string;
  /** The notebook of an event, and the person of an action. */
  name?: string;
  who?: string;
}

export interface IHost {
  budget: number;
  swapped: number;
}

/** What is known of a node that has answered at least once. */
export interface IReport {
  known: true;
  uptime: number | null;
  simulated: boolean;
  maintenance: string;
  settings: ISettings | null;
  host: IHost | null;
  gpus: IGpu[];
  /** What holds GPU memory and does not share. */
  processes: string[];
  notebooks: INotebook[];
  users: IUser[];
  events: IEntry[];
  actions: IEntry[];
}

export interface IHead {
  name: string;
  away: boolean;
  /** When it answered last. */
  since: number;
  now: number;
  error: string;
}

export type INode = IHead & (IReport | { known: false });

/** The reports of the nodes that have answered. */
export function reportsOf(nodes: Iterable<INode>): (IHead & IReport)[] {
  return [...nodes].filter((node): node is IHead & IReport => node.known);
}
