// SPDX-License-Identifier: BSD-3-Clause
/**
 * What `GET gpushare/api/status` answers: the scheduler's status (docs/control.md)
 * with what the server adds. Sizes are bytes, times and durations seconds.
 */
export interface IStatus {
  /** Whether the GPU is shared, and if not, why. */
  availability: ICode;
  /** The number of the last hint that this answer takes in. */
  hint: number;
  /** The scheduler's clock when it answered. */
  time: number;
  gpus: IGpu[];
  host: IHost | null;
  groups: IGroup[];
  notices: INotice[];
}

export interface IHost {
  budget: number;
  swapped: number;
  promised: number;
  /** Host memory for swapped data, of which some is ready before it is needed. */
  pool?: { in_use: number; prepared: number } | null;
}

/** A message as a code; the interface words it. */
export interface ICode {
  code: string;
  params: Params;
}

export type Params = Record<string, unknown>;

export interface IGpu {
  uuid: string;
  index: number;
  name: string;
  total: number;
  reserve: number;
  used: number;
  resident: number;
  pinned: number;
  contexts: number;
  foreign: number;
  ghosts: number;
  free: number;
}

export type State =
  'running' | 'held' | 'yielding' | 'waiting' | 'moving' | 'idle';

/** A lease group: a kernel with all its processes, or one `gpushare run`. */
export interface IGroup {
  id: string;
  name: string;
  kind: string;
  state: State;
  since: number;
  position: number | null;
  reason: ICode | null;
  yields_in: number | null;
  estimate: number | null;
  cell: { msg_id: string; since: number } | null;
  gpus: IShare[];
  /** The notebook of this server that it belongs to. */
  session: ISession | null;
}

/** What a group has on one GPU. */
export interface IShare {
  uuid: string;
  footprint: number;
  resident: number;
  swapped: number;
  pinned: number;
  context: number;
}

export interface ISession {
  path: string;
  name: string;
  type: string;
  kernel_id: string;
}

export interface INotice {
  group: string;
  code: string;
  params: Params;
  time: number;
}
