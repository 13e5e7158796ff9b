// SPDX-License-Identifier: BSD-3-Clause
import {
  formatBytes,
  formatDuration,
  formatPart
} from '../../labextension/src/core/format';
import { isolate, shortName } from '../../labextension/src/words/mentions';
import { placeText, stateName } from '../../labextension/src/words/short';
import { english } from './english';
import type { IGpu, IHost, INotebook, IReport, Kind } from './messages';

/** All that this page says beyond the words that it shares with JupyterLab's panel; reasons and events come in words. */
export const TEXT = {
  views: { gpus: 'GPUs', users: 'Users', history: 'History' },
  link: {
    starting: 'connecting',
    good: 'live',
    bad: 'connection lost; what you see may be old',
    over: 'you may no longer see this: load the page again'
  },
  summary: (
    nodes: number,
    away: number,
    gpus: number,
    notebooks: number,
    waiting: number
  ): string =>
    [
      count(nodes, 'node') + (away ? ` (${away} away)` : ''),
      count(gpus, 'GPU'),
      count(notebooks, 'notebook'),
      waiting ? TEXT.waiting(waiting) : 'nobody waits'
    ].join(' · '),
  filter: 'Filter by notebook, user or node',
  noNodes:
    'No node is known. Tell the service of some: c.GpuShareHub.nodes, or discover.',
  noNotebooks: 'No notebook uses these GPUs.',
  noMatch: 'Nothing here has that in its name.',
  noGpus: 'The scheduler sees no GPU; run there: gpushare doctor',
  noUsers: 'No user has a notebook on these GPUs.',
  away: (since: string, why: string): string =>
    `Away since ${since}${why ? `: ${why}` : ''}`,
  awayNever: (why: string): string =>
    `Has not answered so far${why ? `: ${why}` : ''}`,
  message: (text: string): string => `To all: ${text}`,
  facts: ({ simulated, uptime, settings }: IReport): string =>
    [
      simulated ? 'simulated' : '',
      uptime === null ? '' : `up ${formatDuration(uptime)}`,
      settings ? `policy ${settings.policy}` : ''
    ]
      .filter(Boolean)
      .join(' · '),
  gpu: ({ index, name }: IGpu): string => `${index} · ${name}`,
  used: (used: number, total: number): string =>
    `${formatPart(used, total, 'binary').join(' of ')} in use`,
  busy: (percent: number | null): string =>
    percent === null ? '' : `${percent} % busy`,
  draining: 'draining',
  drain: 'Drain…',
  undrain: 'Use again',
  hostTitle: 'Host memory',
  host: ({ swapped, budget }: IHost): string =>
    `${swapped ? size(swapped) : 'nothing'} in host memory, of ${size(budget)} at most`,
  kinds: {
    resident: 'notebooks',
    unevictable: 'cannot move',
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
    why: 'Why',
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
  noMemory: 'none',
  times: (number: number): string => `${number}×`,
  someone: 'another user',
  you: (name: string): string => `${name} (you)`,
  isHeld: 'on hold by an administrator',
  userColumns: {
    name: 'User',
    notebooks: 'Notebooks',
    share: 'Share now',
    ran: 'GPU time',
    memory: 'On GPUs',
    swapped: 'In host memory',
    waited: 'Waited',
    quota: 'Entitled to'
  },
  users: 'Users of all nodes',
  waiting: (number: number): string =>
    number === 1 ? '1 waits' : `${number} wait`,
  actions: 'Who did what',
  events: 'What happened',
  nothing: 'Nothing so far.',
  cancel: 'Cancel',
  act: {
    open: (name: string): string => `Act on ${name}`,
    title: (name: string, user: string): string => `${name}, of ${user}`,
    release: {
      label: 'End its turn',
      hint: 'Others go first. Its cell goes on when its next turn comes; its memory moves only if others need the room.',
      done: (name: string): string => `The turn of ${name} ends.`
    },
    evict: {
      label: 'Move it out',
      hint: 'Ends its turn, and moves all its memory to the host. Its cell goes on, and its memory comes back, with its next turn.',
      done: (name: string): string => `${name} is being moved out.`
    },
    hold: {
      label: 'Put it on hold',
      hint: 'Ends its turn. It gets no other until an administrator takes it off hold; its user cannot.',
      done: (name: string): string => `${name} is on hold.`
    },
    unhold: {
      label: 'Take it off hold',
      hint: 'It waits for its turn again, as others do.',
      done: (name: string): string => `${name} is no longer on hold.`
    }
  },
  drainTitle: ({ index }: IGpu, node: string): string =>
    `Drain GPU ${index} of ${node}?`,
  drainHint: (notebooks: number, waiting: number): string =>
    'No notebook gets a turn there any more. Those that run lose theirs when their quantum is over, ' +
    'and their memory moves to the host; their cells wait until the GPU is used again. ' +
    (notebooks
      ? `${count(notebooks, 'notebook')} ${notebooks === 1 ? 'has' : 'have'} memory there now` +
        (waiting ? `; ${TEXT.waiting(waiting)}.` : '.')
      : 'No notebook has memory there now.'),
  drainDo: 'Drain',
  drained: ({ index }: IGpu, node: string): string =>
    `GPU ${index} of ${node} is draining.`,
  undrained: ({ index }: IGpu, node: string): string =>
    `GPU ${index} of ${node} is in use again.`,
  maintenance: 'Message to all…',
  maintenanceTitle: (node: string): string =>
    `A message to all who use ${node}`,
  maintenanceLabel: 'It is shown in their notebooks until you end it.',
  maintenanceDo: 'Show it',
  maintenanceEnd: 'End it',
  maintained: 'The message is shown.',
  unmaintained: 'The message has ended.',
  failed: (why: string): string => `Not done: ${why}`,
  noAnswer: 'the service does not answer'
};

function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? '' : 's'}`;
}

export function size(bytes: number): string {
  return formatBytes(bytes, 'binary');
}

/** A duration, or nothing where there was next to none. */
export function someTime(seconds: number): string {
  return seconds >= 0.05 ? formatDuration(seconds) : '';
}

/** What a notebook is called, as one run of its own direction. */
export function nameOf(name: string): string {
  return isolate(shortName(name));
}

/** A time of day, with the date where it is another day's. */
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
