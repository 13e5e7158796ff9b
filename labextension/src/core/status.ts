// SPDX-License-Identifier: BSD-3-Clause
/**
 * What `GET gpushare/api/status` answers: the scheduler's status (docs/reference/control.md)
 * with what the server adds (docs/contributing/lab-protocol.md). Sizes are bytes, times and durations seconds.
 */
export interface IStatus {
  /** Names the server process whose deltas continue this state. */
  stream: string;
  /** The number of the last delta that this state takes in. */
  sequence: number;
  /** Whether the GPU is shared, and if not, why. */
  availability: ICode;
  /** What the viewer may do. */
  may: { adjust: boolean; settings: boolean };
  settings: ISettings | null;
  /** Whether idle notebooks can be hibernated; null without a scheduler. */
  hibernation: IHibernation | null;
  /** The scheduler's clock when it answered. */
  time: number;
  gpus: IGpu[];
  host: IHost | null;
  groups: IGroup[];
  notices: INotice[];
  /** Kernels of this server that do not share the GPU. */
  unshared: IUnshared[];
  /** Only if somebody who looks wants it. */
  timeline: ITimeline | null;
}

/** How the GPUs are shared. */
export interface ISettings {
  quantum: number | 'auto';
  anti_thrash: AntiThrash;
  policy: string;
  /** Names of all policies, also of those of other packages. Older schedulers do not say. */
  policies?: string[];
  /** Seconds of idleness after which a notebook hibernates; null: never. Older schedulers do not say. */
  hibernate_after?: number | null;
}

/** Whether idle notebooks can be hibernated, and be woken on another GPU. */
export interface IHibernation {
  /** Null: nobody has tried yet. */
  able: boolean | null;
  /** Why not. */
  code: string | null;
  /** The same in the scheduler's words. */
  text: string;
  moves: boolean;
}

export type AntiThrash = 'auto' | 'on' | 'off';

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
  unevictable: number;
  contexts: number;
  foreign: number;
  pending_reclaim: number;
  free: number;
  /** Percent of the time in which some kernel ran, or null if NVML does not say. */
  utilization: number | null;
  /** An administrator wants it empty: nobody gets it. */
  draining: boolean;
}

export type State =
  | 'running'
  | 'idle_lease'
  | 'finishing'
  | 'waiting'
  | 'restoring'
  | 'idle'
  | 'hibernated'
  | 'waking';

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
  estimate: IEstimate | null;
  preferences: IGroupPreferences;
  /** What it counts as now. */
  class: Class;
  /** Whose it is. */
  user: string;
  cell: ICell | null;
  last_cell: Omit<ICell, 'since'> | null;
  gpus: IShare[];
  /** The documents of this server that use the kernel. */
  sessions: ISession[];
  totals: ITotals;
  /** Null where it is awake and nobody tried to hibernate it. */
  hibernation?: ISleep | null;
  /** The scheduler's clock when it said all this: what counts up or down, counts from here. */
  at: number;
}

/** How long one that waits has to wait still. */
export interface IEstimate {
  seconds: number;
  low: number;
  high: number;
}

/** How far a group is from being hibernated, or awake. */
export interface ISleep {
  state:
    'ordered' | 'parking' | 'hibernating' | 'hibernated' | 'waking' | 'refused';
  since: number;
  /** Bytes of the GPU that it gives back, and needs to wake. */
  frees: number;
  /** Seconds that waking it takes. */
  estimate: number | null;
  /** Why it was left alone. */
  code: string | null;
  /** The same in the scheduler's words. */
  text: string;
}

export type Class = 'interactive' | 'background';

/** `auto`: its class follows from what it does. */
export type Priority = Class | 'auto';

/** What people asked for a group. */
export interface IGroupPreferences {
  priority: Priority;
  keep: boolean;
  frozen: boolean;
  /** An administrator froze it. */
  on_hold: boolean;
  /** Bytes that it may have on each GPU; 0: no cap. */
  memory: number;
  /** Fractions of one GPU's time: what is guaranteed, and what is never exceeded; 0: none. */
  request: number;
  limit: number;
  /** Its part of what is spare, beside the others'. */
  weight: number;
  exclusive: boolean;
}

export interface ICell {
  msg_id: string;
  since: number;
  /** Seconds for which it has waited for the GPU, and run on it. */
  waited: number;
  ran: number;
}

export interface ITotals {
  bursts: number;
  waits: number;
  waited: number;
  ran: number;
  evicted: number;
  restored: number;
}

/** What a group has on one GPU. */
export interface IShare {
  uuid: string;
  footprint: number;
  resident: number;
  swapped: number;
  unevictable: number;
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

export interface IUnshared {
  kernel_id: string;
  code: string;
  params: Params;
  sessions: ISession[];
}

/** What happened in the last minutes. */
export interface ITimeline {
  /** The time from which on it is known. */
  start: number;
  spans: ISpan[];
  /** Utilisation of the GPUs: time, uuid, percent. */
  samples: [number, string, number][];
}

export interface ISpan {
  id: number;
  group: string;
  name: string;
  kind: 'burst' | 'wait' | 'in' | 'out' | 'hibernated';
  start: number;
  /** Null while it lasts. */
  end: number | null;
  gpu: string | null;
  bytes: number;
}

/** What the server pushes: the number of the last delta. */
export interface IAnnouncement {
  stream: string;
  sequence: number;
}

/** What changed. */
export interface IDelta {
  stream: string;
  sequence: number;
  time: number;
  set: Partial<
    Pick<
      IStatus,
      | 'availability'
      | 'host'
      | 'settings'
      | 'hibernation'
      | 'notices'
      | 'unshared'
    >
  >;
  gpus: IGpu[];
  groups: Omit<IGroup, 'at'>[];
  removed: string[];
  spans: ISpan[];
  samples: ITimeline['samples'];
}

/** Whether a group uses the GPU now; one with an idle lease (`idle_lease`) does not. */
export function isRunning({ state }: Pick<IGroup, 'state'>): boolean {
  return ['running', 'finishing', 'restoring'].includes(state);
}

/** Whether a group is kept from its work: by others, or because it has to wake first. */
export function isWaiting({ state }: Pick<IGroup, 'state'>): boolean {
  return state === 'waiting' || state === 'waking';
}

/**
 * Whether it makes a difference that a group is in the background: somebody asked for it,
 * or it competes with another one now.
 */
export function showsBackground(
  group: IGroup,
  groups: readonly IGroup[]
): boolean {
  const competes = (one: IGroup): boolean => isRunning(one) || isWaiting(one);
  return (
    group.class === 'background' &&
    (group.preferences.priority === 'background' ||
      (competes(group) &&
        groups.some(other => other.id !== group.id && competes(other))))
  );
}

/** Whether a kernel is the group's. */
export function isOf(
  group: IGroup,
  kernelId: string | null | undefined
): boolean {
  return (
    group.id === kernelId ||
    group.sessions.some(session => session.kernel_id === kernelId)
  );
}

/** Bytes of a group on all GPUs; `resident` is all that is there, also what cannot move. */
export function memoryOf(group: IGroup): {
  resident: number;
  swapped: number;
  total: number;
} {
  const sum = { resident: 0, swapped: 0, total: 0 };
  for (const share of group.gpus) {
    sum.resident += share.resident + share.unevictable;
    sum.swapped += share.swapped;
    sum.total += share.footprint + share.unevictable;
  }
  return sum;
}

export type Kind = ISpan['kind'];

export function isUnavailable({ availability }: IStatus): boolean {
  return availability.code !== 'ok';
}

export function isUnshared(
  { unshared }: IStatus,
  kernelId: string | null
): boolean {
  return unshared.some(({ kernel_id }) => kernel_id === kernelId);
}
