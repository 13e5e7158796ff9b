// SPDX-License-Identifier: BSD-3-Clause
/**
 * What `GET gpushare/api/status` answers: the scheduler's status (docs/reference/control.md)
 * with what the server adds (docs/contributing/lab-protocol.md). Sizes are bytes, times and durations seconds.
 */
export interface IStatus {
  /** The id of the server process whose deltas continue this state. */
  stream: string;
  /** The number of the last delta that is included. */
  sequence: number;
  /** Whether the GPU is shared, and if not, why. */
  availability: ICode;
  /** The permissions of the user. */
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
  /** Only while a view needs it. */
  timeline: ITimeline | null;
}

/** How the GPUs are shared. */
export interface ISettings {
  quantum: number | 'auto';
  anti_thrash: AntiThrash;
  policy: string;
  /** The names of all policies, including those of other packages. Older schedulers do not report them. */
  policies?: string[];
  /** Seconds of idleness after which a notebook hibernates; null: never. Older schedulers do not report it. */
  hibernate_after?: number | null;
  /** Whether notebooks get ready before they use the GPU. Older schedulers do not report it. */
  prefetch?: boolean;
}

/** Whether idle notebooks can be hibernated, and woken on another GPU. */
export interface IHibernation {
  /** Null if no attempt has been made yet. */
  able: boolean | null;
  /** The reason why they cannot. */
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
  /** The disk for data of idle notebooks. `fault`: why no more goes there, or "". */
  disk_tier?: { fault: string } | null;
}

/** A message as a code. The user interface has the text. */
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
  /** Percentage of time in which a CUDA kernel was running; null if NVML does not report it. */
  utilization: number | null;
  /** Whether an administrator is draining it, so that it is not granted to any group. */
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
  | 'waking'
  | 'prefetching';

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
  /** Its current class. */
  class: Class;
  /** Its owner. */
  user: string;
  cell: ICell | null;
  last_cell: Omit<ICell, 'since'> | null;
  /** The number of cells that wait in its kernel. Older schedulers do not report it. */
  queued?: number;
  gpus: IShare[];
  /** The documents of this server that use the kernel. */
  sessions: ISession[];
  totals: ITotals;
  /** Null while it is awake and no attempt was made to hibernate it. */
  hibernation?: ISleep | null;
  /** Null unless it is getting ready, or is ready. Other users' groups and older schedulers do not report it. */
  prefetch?: IPrefetch | null;
  /** The scheduler's clock at the time of this message. Values that count up or down start here. */
  at: number;
}

/** How much longer a group has to wait, in seconds. */
export interface IEstimate {
  seconds: number;
  low: number;
  high: number;
}

/** The progress of hibernating or waking a group. */
export interface ISleep {
  state:
    'ordered' | 'parking' | 'hibernating' | 'hibernated' | 'waking' | 'refused';
  since: number;
  /** GPU memory that it frees, and needs again to wake. */
  frees: number;
  /** Seconds that waking it takes. */
  estimate: number | null;
  /** The reason why it was not hibernated. */
  code: string | null;
  /** The same in the scheduler's words. */
  text: string;
}

/** The prefetch of a group that is getting ready, or is ready. */
export interface IPrefetch {
  /** The sign that led to this: `focus`, `typing`, `queued`, `ready` or `cell`. */
  hint: string;
  /** How likely the group is to use the GPU within a minute of that sign. */
  likelihood: number;
  stage: 'evicting' | 'waking' | 'restoring' | 'ready';
  since: number;
}

/** `agent`: a program runs its cells on a person's behalf. */
export type Class = 'interactive' | 'agent' | 'background';

/** `auto`: the scheduler chooses the class from the group's behaviour. */
export type Priority = Class | 'auto';

/** The settings of users for a group. */
export interface IGroupPreferences {
  priority: Priority;
  keep: boolean;
  frozen: boolean;
  /** Whether an administrator has put it on hold. */
  on_hold: boolean;
  /** The most bytes that it may have on each GPU; 0: no limit. */
  memory: number;
  /** The guaranteed and the largest fraction of one GPU's time; 0: none. */
  request: number;
  limit: number;
  /** Its part of the spare time, relative to those of other groups. */
  weight: number;
  exclusive: boolean;
}

export interface ICell {
  msg_id: string;
  since: number;
  /** Seconds for which it has waited for the GPU and run on it. */
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

/** The memory of a group on one GPU. */
export interface IShare {
  uuid: string;
  footprint: number;
  resident: number;
  swapped: number;
  unevictable: number;
  context: number;
  /** The part of `resident` that can be evicted without a copy, because it has not changed. */
  clean?: number;
  /** The part of `swapped` that other notebooks of the user also have there. */
  shared?: number;
  disk?: number;
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
  /** The time of the oldest data. */
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

/** An event of the server with the number of the last delta. */
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

/** Whether a group has to be restored before it uses the GPU, and nothing restores it yet. */
export function isAway(group: IGroup): boolean {
  const { state, preferences, prefetch } = group;
  const { swapped, disk } = memoryOf(group);
  return (
    ['idle', 'idle_lease', 'hibernated'].includes(state) &&
    !(prefetch || preferences.frozen || preferences.on_hold) &&
    (state === 'hibernated' || swapped + disk > 0)
  );
}

/** Whether the memory of a group was restored before its next cell. */
export function isReady({
  state,
  prefetch
}: Pick<IGroup, 'state' | 'prefetch'>): boolean {
  return ['idle_lease', 'idle'].includes(state) && prefetch?.stage === 'ready';
}

/** Whether a group is waiting for the GPU, or has to wake first. */
export function isWaiting({ state }: Pick<IGroup, 'state'>): boolean {
  return state === 'waiting' || state === 'waking';
}

/**
 * Whether the low priority of a group is worth showing: a user has chosen it, or the group is
 * competing with another one now.
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

/** The memory of a group, in bytes: where it is, and what is clean and shared of that. */
export interface IMemory {
  resident: number;
  clean: number;
  swapped: number;
  shared: number;
  disk: number;
  total: number;
}

/** Bytes of a group on all GPUs. `resident` includes unevictable memory. */
export function memoryOf(group: IGroup): IMemory {
  const sum = {
    resident: 0,
    clean: 0,
    swapped: 0,
    shared: 0,
    disk: 0,
    total: 0
  };
  for (const share of group.gpus) {
    sum.resident += share.resident + share.unevictable;
    sum.clean += share.clean ?? 0;
    sum.swapped += share.swapped;
    sum.shared += share.shared ?? 0;
    sum.disk += share.disk ?? 0;
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
