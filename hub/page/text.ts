// SPDX-License-Identifier: BSD-3-Clause
import {
  formatBytes,
  formatDuration,
  formatPart
} from '../../labextension/src/core/format';
import { isolate, shortName } from '../../labextension/src/words/mentions';
import { placeText, stateName } from '../../labextension/src/words/short';
import { tiersText } from '../../labextension/src/words/states';
import { english } from './english';
import type { IGpu, IMemory, INotebook, IReport, Kind } from './messages';

/** The texts of this page, other than those that it shares with JupyterLab's panel and those that the service sends. */
export const TEXT = {
  views: { gpus: 'GPUs', users: 'Users', usage: 'Usage', history: 'History' },
  link: {
    starting: 'connecting',
    good: 'live',
    bad: 'connection lost; the data may be out of date',
    over: 'you no longer have access; reload the page to log in again'
  },
  summary: (
    nodes: number,
    unreachable: number,
    gpus: number,
    notebooks: number,
    waiting: number
  ): string =>
    [
      count(nodes, 'node') +
        (unreachable ? ` (${unreachable} unreachable)` : ''),
      count(gpus, 'GPU'),
      count(notebooks, 'notebook'),
      waiting ? TEXT.waiting(waiting) : 'none waiting'
    ].join(' · '),
  filter: 'Filter by notebook, user or node',
  noNodes:
    'This service has no nodes. Set c.GpuShareHub.nodes or c.GpuShareHub.discover.',
  noNotebooks: 'No notebooks are using these GPUs.',
  noMatch: 'No notebooks on this node match the filter.',
  noGpus:
    'The scheduler of this node found no GPUs. Run there: gpushare doctor',
  noUsers: 'No users have notebooks on these GPUs.',
  unreachable: (since: string, why: string): string =>
    `Unreachable since ${since}${why ? `: ${why}` : ''}.`,
  neverReached: (why: string): string =>
    `Not reached so far${why ? `: ${why}` : ''}.`,
  message: (text: string): string => `Maintenance: ${text}`,
  facts: ({ simulated, uptime, settings }: IReport): string =>
    [
      simulated ? 'simulated' : '',
      uptime === null ? '' : `up ${formatDuration(uptime)}`,
      settings ? `policy ${settings.policy}` : ''
    ]
      .filter(Boolean)
      .join(' · '),
  gpu: ({ index, name }: IGpu): string => `GPU ${index} · ${name}`,
  used: (used: number, total: number): string =>
    `${formatPart(used, total, 'binary').join(' of ')} in use`,
  power: (watts: number | null): string => (watts === null ? '' : `${watts} W`),
  busyTitle:
    'Share of time in which a CUDA kernel was running, now and recently',
  draining: 'draining',
  drain: 'Drain…',
  undrain: 'Stop draining',
  hostTitle: 'Host memory',
  kinds: {
    resident: 'notebooks',
    unevictable: 'unevictable',
    contexts: 'CUDA contexts',
    foreign: 'other programs',
    pending_reclaim: 'being freed',
    free: 'free',
    swapped: 'in host memory'
  } satisfies Record<Kind, string>,
  notebooks: (node: string): string => `Notebooks on ${node}`,
  columns: {
    name: 'Notebook',
    state: 'State',
    why: 'Details',
    gpus: 'GPU',
    memory: 'Memory',
    ran: 'GPU time',
    waited: 'Waited',
    act: 'Actions'
  },
  state: ({ state, position }: INotebook): string => {
    const name = stateName({ state }, english);
    return state === 'waiting' && position !== null
      ? `${name}, ${placeText(position, english)}`
      : name;
  },
  swapped: (bytes: number): string => `${size(bytes)} in host memory`,
  disk: (bytes: number): string => `${size(bytes)} on disk`,
  saved: (bytes: number): string =>
    `${size(bytes)} saved by storing equal data once`,
  noMemory: 'none',
  times: (number: number): string => `${number}×`,
  someone: 'another user',
  you: (name: string): string => `${name} (you)`,
  onHold: 'on hold by an administrator',
  userColumns: {
    name: 'User',
    notebooks: 'Notebooks',
    share: 'Current share',
    ran: 'GPU time',
    memory: 'GPU memory',
    swapped: 'Host memory',
    waited: 'Waited',
    quota: 'Entitlement'
  },
  users: 'Users of all nodes',
  dividedBy: 'Rows',
  divisions: {
    users: 'Usage by user',
    teams: 'Usage by team',
    notebooks: 'Usage by notebook',
    days: 'Usage by day'
  },
  period: 'Period',
  lastDays: (days: number): string =>
    days === 1 ? 'last 24 hours' : `last ${days} days`,
  usageKeys: { day: 'Day', team: 'Team', user: 'User', notebook: 'Notebook' },
  usageFigures: {
    seconds: 'GPU hours',
    gpu_bytes: 'GPU GiB-hours',
    host_bytes: 'Host GiB-hours',
    disk_bytes: 'Disk GiB-hours',
    moved: 'Moved',
    energy: 'kWh',
    cost: 'Cost'
  },
  noTeam: 'no team',
  otherNotebooks: 'others',
  notMeasured: 'not measured',
  noUse: 'No notebook used a GPU in this period.',
  noUsage: (nodes: readonly string[]): string =>
    `Not included, because they did not respond: ${nodes.join(', ')}.`,
  usageRefused: (name: string, why: string): string =>
    `Not included: ${name}. ${why}`,
  idleEnergy: (amount: string): string =>
    `In addition, idle GPUs consumed ${amount} kWh, which are not charged to any notebook.`,
  waiting: (number: number): string => `${number} waiting`,
  actions: 'Audit log',
  events: 'Events',
  nothing: 'No entries yet.',
  cancel: 'Cancel',
  act: {
    open: (name: string): string => `Actions for ${name}`,
    title: (name: string, user: string): string => `${name} (${user})`,
    release: {
      label: 'Release the GPU',
      hint: 'The notebook keeps its memory on the GPU until others need the space. It queues again when it has more work.',
      done: (name: string): string => `Released the GPU held by ${name}.`
    },
    evict: {
      label: 'Evict its memory',
      hint: 'Release the GPU and evict its memory to the host. The data is restored when it is needed.',
      done: (name: string): string =>
        `The memory of ${name} is being evicted to the host.`
    },
    hold: {
      label: 'Put on hold',
      hint: 'Take the GPU from the notebook until an administrator resumes it; its user cannot. Its cell pauses, and no data is lost.',
      done: (name: string): string => `${name} is on hold.`
    },
    unhold: {
      label: 'Resume',
      hint: 'Let the notebook use the GPU again. It returns to the queue.',
      done: (name: string): string => `${name} can use the GPU again.`
    }
  },
  drainTitle: ({ index }: IGpu, node: string): string =>
    `Drain GPU ${index} of ${node}?`,
  drainHint: (notebooks: number, waiting: number): string =>
    'The GPU grants no new leases. Running notebooks release it when their time slice ends, and their memory is ' +
    'evicted to the host. Their cells wait until you stop draining. ' +
    (notebooks
      ? `${count(notebooks, 'notebook')} ${notebooks === 1 ? 'uses' : 'use'} it now` +
        (waiting ? ` (${TEXT.waiting(waiting)}).` : '.')
      : 'No notebooks use it now.'),
  drainDo: 'Drain',
  drained: ({ index }: IGpu, node: string): string =>
    `GPU ${index} of ${node} is draining.`,
  undrained: ({ index }: IGpu, node: string): string =>
    `GPU ${index} of ${node} accepts new leases again.`,
  maintenance: 'Message to all users…',
  maintenanceTitle: (node: string): string => `Message to all users of ${node}`,
  maintenanceLabel:
    'All users see the message in JupyterLab until you clear it.',
  maintenanceDo: 'Show message',
  maintenanceEnd: 'Clear message',
  maintained: 'All users now see the message.',
  unmaintained: 'Maintenance message cleared.',
  failed: (why: string): string => `Failed: ${why}`,
  noAnswer: 'the service did not respond; check your connection, and try again'
};

function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? '' : 's'}`;
}

export function size(bytes: number): string {
  return formatBytes(bytes, 'binary');
}

/** A duration; empty if it is close to zero. */
export function someTime(seconds: number): string {
  return seconds >= 0.05 ? formatDuration(seconds) : '';
}

/** GPU time in hours. */
export function hours(seconds: number): string {
  return (seconds / 3600).toFixed(2);
}

/** An energy in kilowatt-hours, without the unit. */
export function kwh(joules: number): string {
  return (joules / 3.6e6).toFixed(3);
}

/** An amount of money. */
export function money(amount: number, currency: string): string {
  return `${amount.toFixed(2)} ${currency}`.trim();
}

/** Where a notebook's memory is that is not on a GPU. */
export function awayText({ swapped, disk }: IMemory): string {
  return [swapped && TEXT.swapped(swapped), disk && TEXT.disk(disk)]
    .filter(Boolean)
    .join(', ');
}

/** What of a notebook's memory needs no copy, or no memory of its own. */
export function sharedText(memory: IMemory): string {
  return tiersText(memory, { trans: english, units: 'binary' });
}

/** The name of a notebook, isolated from text in another writing direction. */
export function nameOf(name: string): string {
  return isolate(shortName(name));
}

/** A time of day, with the date if that is not today. */
export function timeOf(seconds: number): string {
  const date = new Date(1000 * seconds);
  const clock = {
    hour: '2-digit',
    minute: '2-digit',
    hourCycle: 'h23'
  } as const;
  return date.toDateString() === new Date().toDateString()
    ? date.toLocaleTimeString([], { ...clock, second: '2-digit' })
    : date.toLocaleString([], { day: 'numeric', month: 'short', ...clock });
}
