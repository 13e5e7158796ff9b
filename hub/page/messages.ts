// SPDX-License-Identifier: BSD-3-Clause
import type { ISettings, State } from '../../labextension/src/core/status';

/** The messages of the service (`view.py`). Sizes are in bytes, times and durations in seconds. */
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
  /** Watts; null: unknown. */
  power: number | null;
  draining: boolean;
  memory: Partial<Record<Kind, number>>;
}

/** A user's memory, on GPUs and in host memory. */
export interface IMemory {
  resident: number;
  unevictable: number;
  swapped: number;
  disk: number;
  /** The part of `resident` that has not changed, and the part of `swapped` that is shared. */
  clean: number;
  shared: number;
}

export interface INotebook {
  id: string;
  name: string;
  /** '' for another user whose name the viewer may not see. */
  user: string;
  mine: boolean;
  state: State;
  position: number | null;
  /** When the state began, by the service's clock. */
  since: number | null;
  why: string;
  preferences: string;
  /** Whether an administrator has put it on hold. */
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
  /** Fractions of one GPU's time: current use, and the limit. */
  share: number | null;
  limit: number | null;
  quota: string;
}

/** An event on a node, or an action of a user. */
export interface IEntry {
  time: number;
  text: string;
  key?: string;
  /** The notebook of an event. */
  name?: string;
  /** The user who carried out an action. */
  user?: string;
}

export interface IHost {
  budget: number;
  swapped: number;
  /** Bytes that are saved because equal data is stored once; bytes of evicted data on disk. */
  shared?: number;
  disk?: number;
}

/** The report of a node that has responded at least once. */
export interface IReport {
  known: true;
  uptime: number | null;
  simulated: boolean;
  maintenance: string;
  settings: ISettings | null;
  host: IHost | null;
  gpus: IGpu[];
  /** Sentences about programs that use the GPUs without gpushare. */
  processes: string[];
  notebooks: INotebook[];
  users: IUser[];
  events: IEntry[];
  actions: IEntry[];
}

/** What the rows of a usage report are divided by. */
export type Division = 'day' | 'team' | 'user' | 'notebook';

/** A row of a usage report: what was used. Energies are in joules; null: not measured. */
export interface IUse extends Partial<Record<Division, string>> {
  seconds: number;
  gpu_byte_seconds: number;
  host_byte_seconds: number;
  /** Missing in the report of a node with an older version. */
  disk_byte_seconds?: number;
  moved: number;
  energy: number | null;
  /** With prices only. */
  cost?: number;
}

/** The usage report of a node. */
export interface IUsage {
  rows: IUse[];
  prices: { currency: string } | null;
  /** For viewers who may see all. */
  idle_energy?: number | null;
}

/** What a node answered when it was asked for its report. */
export interface INodeUsage {
  /** Null: it did not respond, or refused. */
  report: IUsage | null;
  /** Why it refused. */
  refused?: string;
}

export interface IHead {
  name: string;
  away: boolean;
  /** When it became unreachable, or responded again. */
  since: number;
  now: number;
  /** Why it is unreachable and what to do, and the technical cause; '' for viewers who may not see them. */
  error: string;
  detail: string;
}

export type INode = IHead & (IReport | { known: false });

/** The nodes that have responded at least once. */
export function reportsOf(nodes: Iterable<INode>): (IHead & IReport)[] {
  return [...nodes].filter((node): node is IHead & IReport => node.known);
}
