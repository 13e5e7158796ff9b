// SPDX-License-Identifier: BSD-3-Clause
import type {
  ReadonlyJSONObject,
  ReadonlyPartialJSONObject
} from '@lumino/coreutils';

import type { ITranslation } from '../core/translation';
import type { AntiThrash, IGroup, IStatus, Priority } from '../core/status';
import { isAway, isRunning, isWaiting } from '../core/status';
import { CommandIds } from '../tokens';
import { cannotText, isFinal, refusalText } from '../words/refusals';
import { goToLabel, gpuText } from '../words/short';

export type Args = ReadonlyPartialJSONObject;

/** A command with its arguments. */
export interface IEntry {
  command: string;
  args?: ReadonlyJSONObject;
}

/** The state in which an action is offered. */
export interface IAbout {
  args: Args;
  /** The group that the action affects; null if there is none, or if it affects all. */
  group: IGroup | null;
  /** The name of that group for sentences; '' without a group. */
  readonly name: string;
  status: IStatus | null;
  /** Whether a document of the group can be opened on this page. */
  hasDocument: boolean;
  trans: ITranslation;
}

/**
 * Menus and lists that offer actions: the palette, the menu of a row in the panel, the
 * menu of the chip in a notebook's toolbar, the menu next to the name of a GPU, and
 * JupyterLab's own menus of a document: its tab, its file, its kernel.
 */
export type Place = 'palette' | 'row' | 'chip' | 'mode' | 'document';

/** One action, with everything that menus, buttons and the palette need to offer it. */
export interface IActionRow {
  command: string;
  /** What it affects: the page, one notebook, or how all notebooks share. */
  scope: 'page' | 'notebook' | 'settings';
  /** Whether it needs no permissions. */
  isFree?: boolean;
  label: (about: IAbout) => string;
  /** Whether the label mentions the GPU. */
  isNamed?: boolean;
  /** A label for a button next to the name of the notebook. */
  short?: (about: IAbout) => string;
  caption: (about: IAbout) => string;
  /** Whether it is possible now. Actions on one notebook are not possible without a group. */
  isEnabled?: (about: IAbout) => boolean;
  /** Whether it is shown in menus. */
  isVisible?: (about: IAbout) => boolean;
  /** Whether it is the current choice. */
  isToggled?: (about: IAbout) => boolean;
  /** The schemas of its arguments, other than `group`. */
  parameters?: (trans: ITranslation) => object;
  /** Sets of arguments; each is an entry of its own. */
  choices?: readonly ReadonlyJSONObject[];
  /** Its rank in each place. A separator is drawn between entries with different tens. */
  ranks: Partial<Record<Place, number>>;
}

/** The longest time slice that the scheduler accepts, in seconds. */
export const LONGEST_QUANTUM = 3600;

/** Every action, in the order of `CommandIds`. */
export const ACTIONS: readonly IActionRow[] = [
  {
    command: CommandIds.openPanel,
    scope: 'page',
    label: ({ args, trans }) =>
      args['isPalette']
        ? trans.__('Show the Panel')
        : trans.__('Show GPU Sharing'),
    caption: ({ trans }) =>
      trans.__('Show which notebooks are running or waiting'),
    ranks: { palette: 0, chip: 0 }
  },
  {
    command: CommandIds.openTimeline,
    scope: 'page',
    label: ({ args, trans }) =>
      args['isPalette']
        ? trans.__('Show the Timeline')
        : trans.__('Show GPU Timeline'),
    caption: ({ trans }) =>
      trans.__('Show what notebooks did on the GPU in the last half hour'),
    parameters: () => ({ minutes: { type: 'number' } }),
    ranks: { palette: 0 }
  },
  {
    command: CommandIds.goTo,
    scope: 'notebook',
    isFree: true,
    label: ({ trans }) => trans.__('Go to the Notebook'),
    short: ({ name, trans }) => goToLabel(name, trans),
    caption: ({ trans }) =>
      trans.__('Show the notebook or console that uses the GPU'),
    isEnabled: ({ hasDocument }) => hasDocument,
    ranks: { row: 0 }
  },
  {
    command: CommandIds.release,
    scope: 'notebook',
    isNamed: true,
    label: ({ trans }) => trans.__('Release the GPU'),
    short: ({ trans }) => trans.__('Release'),
    caption: ({ group, status, trans }) => {
      const waiting = (status?.groups ?? []).filter(
        ({ id, state }) => state === 'waiting' && id !== group?.id
      ).length;
      const others =
        waiting > 0
          ? trans._n(
              '%1 waiting notebook can run sooner.',
              '%1 waiting notebooks can run sooner.',
              waiting
            )
          : trans.__('No other notebook is waiting now.');
      return trans.__(
        '%1 This notebook keeps its memory on the GPU until others need the space. It queues again when it has more work.',
        others
      );
    },
    isEnabled: ({ group }) =>
      ['running', 'idle_lease', 'restoring'].includes(group?.state ?? ''),
    ranks: { palette: 1, row: 1, chip: 1, document: 0 }
  },
  {
    command: CommandIds.evict,
    scope: 'notebook',
    label: ({ trans }) => trans.__('Evict Its Memory'),
    short: ({ trans }) => trans.__('Evict memory'),
    caption: ({ trans }) =>
      trans.__(
        'Release the GPU and evict its memory to the host. The data is restored when it is needed.'
      ),
    isEnabled: ({ group }) =>
      group?.gpus.some(({ resident }) => resident > 0) ?? false,
    ranks: { palette: 6, row: 31, chip: 6 }
  },
  {
    command: CommandIds.hibernate,
    scope: 'notebook',
    label: ({ group, trans }) =>
      group && isAtWork(group)
        ? trans.__('Hibernate When Idle')
        : trans.__('Hibernate Now'),
    short: ({ group, trans }) =>
      group && isAtWork(group)
        ? trans.__('Hibernate when idle')
        : trans.__('Hibernate now'),
    caption: about => {
      const { trans } = about;
      const why = awakeBecause(about);
      return why
        ? trans.__('Cannot hibernate now: %1.', why)
        : trans.__(
            'Free all of its GPU memory, including the CUDA context. Nothing is lost; its next cell wakes it.'
          );
    },
    isEnabled: about => awakeBecause(about) === '',
    isVisible: ({ group, status }) =>
      (status?.hibernation ?? null) !== null && !isAsleep(group),
    ranks: { palette: 7, row: 32, chip: 7, document: 1 }
  },
  {
    command: CommandIds.wake,
    scope: 'notebook',
    label: ({ group, trans }) =>
      isOrdered(group) ? trans.__('Cancel Hibernation') : trans.__('Wake'),
    caption: ({ group, trans }) =>
      isOrdered(group)
        ? trans.__('Cancel the pending hibernation.')
        : group?.hibernation?.state === 'waking'
          ? trans.__('It is waking up.')
          : trans.__('Wake it now instead of at its next cell.'),
    isEnabled: ({ group }) => group?.hibernation?.state !== 'waking',
    isVisible: ({ group }) => isAsleep(group),
    ranks: { palette: 8, row: 33, chip: 8, document: 2 }
  },
  {
    command: CommandIds.ready,
    scope: 'notebook',
    label: ({ trans }) => trans.__('Get Ready'),
    short: ({ trans }) => trans.__('Get ready'),
    caption: ({ trans }) =>
      trans.__(
        'Restore its memory now instead of at its next cell, if the GPU has room.'
      ),
    isEnabled: ({ group }) => group !== null && isAway(group),
    // Older schedulers do not report it.
    isVisible: ({ group, status }) =>
      group?.prefetch !== undefined && status?.settings?.prefetch !== false,
    ranks: { palette: 8, row: 34, chip: 9, document: 3 }
  },
  {
    command: CommandIds.setPriority,
    scope: 'notebook',
    choices: (['background', 'interactive', 'agent', 'auto'] as const).map(
      priority => ({
        priority
      })
    ),
    label: ({ group, args, trans }) =>
      ({
        background: trans.__('Let Others Go First'),
        interactive: trans.__('Make Interactive'),
        agent: trans.__('Treat as Agent'),
        auto: trans.__('Set Priority Automatically')
      })[priorityOf(group, args)],
    short: ({ group, args, trans }) =>
      priorityOf(group, args) === 'background'
        ? trans.__('Let others go first')
        : trans.__('Make interactive'),
    caption: ({ group, args, trans }) =>
      ({
        background: trans.__(
          'Low priority: interactive notebooks go first, but this one still gets its turn.'
        ),
        interactive: trans.__(
          'Let it go ahead of notebooks with low priority.'
        ),
        agent: trans.__(
          "A program runs its cells. People's cells go first, and notebooks with low priority go last."
        ),
        auto: trans.__(
          'Interactive when a cell starts, low priority when it runs for a long time.'
        )
      })[priorityOf(group, args)],
    isEnabled: ({ group, args }) =>
      group?.preferences.priority !== priorityOf(group, args),
    // Defaults are not mentioned.
    isVisible: ({ group, args }) =>
      priorityOf(group, args) !== 'auto' ||
      group?.preferences.priority !== 'auto',
    parameters: () => ({
      priority: { enum: ['interactive', 'agent', 'background', 'auto'] }
    }),
    ranks: { palette: 2, row: 10, chip: 2 }
  },
  {
    command: CommandIds.toggleKeep,
    scope: 'notebook',
    label: ({ group, trans }) =>
      group?.preferences.keep
        ? trans.__('Stop Keeping on the GPU')
        : trans.__('Keep on the GPU'),
    caption: ({ group, trans }) =>
      group?.preferences.keep
        ? trans.__(
            'Let its memory be evicted while it is idle and other notebooks need the space.'
          )
        : trans.__(
            'Keep its memory on the GPU while it is idle, until another notebook has waited for 5 minutes.'
          ),
    ranks: { palette: 3, row: 20, chip: 3 }
  },
  {
    command: CommandIds.toggleFrozen,
    scope: 'notebook',
    label: ({ group, trans }) =>
      group?.preferences.frozen ? trans.__('Unfreeze') : trans.__('Freeze'),
    caption: ({ group, trans }) =>
      group?.preferences.frozen
        ? trans.__('Let it use the GPU again; it returns to the queue.')
        : trans.__(
            'Stop it from using the GPU until you unfreeze it. Its cell pauses, and its memory can be evicted. Nothing is lost.'
          ),
    ranks: { palette: 4, row: 30, chip: 4 }
  },
  {
    command: CommandIds.setMemory,
    scope: 'notebook',
    label: ({ trans }) => trans.__('Limit Its Memory…'),
    caption: ({ trans }) =>
      trans.__(
        'Limit its memory on each GPU. Existing memory is kept; allocations beyond the limit fail as if the GPU were full.'
      ),
    parameters: trans => ({
      memory: {
        type: 'number',
        minimum: 0,
        description: trans.__('Bytes on each GPU; 0: no limit')
      }
    }),
    ranks: { palette: 5, row: 21, chip: 5 }
  },
  {
    command: CommandIds.setAntiThrash,
    scope: 'settings',
    choices: (['auto', 'on', 'off'] as const).map(anti_thrash => ({
      anti_thrash
    })),
    label: ({ args, trans }) =>
      ({
        on: trans.__('Run One Notebook at a Time'),
        off: trans.__('Never Take Turns'),
        auto: trans.__('Take Turns When Memory Is Short')
      })[modeOf(args)],
    caption: ({ args, trans }) =>
      ({
        on: trans.__(
          'Anti-thrash mode on: one notebook runs on a GPU at a time, even if several would fit.'
        ),
        off: trans.__(
          'Anti-thrash mode off: notebooks whose memory the driver can page run side by side, even if their memory does not fit.'
        ),
        auto: trans.__(
          'Anti-thrash mode auto: notebooks run side by side as long as their memory fits.'
        )
      })[modeOf(args)],
    isToggled: ({ args, status }) =>
      status?.settings?.anti_thrash === modeOf(args),
    parameters: () => ({ anti_thrash: { enum: ['auto', 'on', 'off'] } }),
    ranks: { palette: 10, mode: 0 }
  },
  {
    command: CommandIds.setQuantum,
    scope: 'settings',
    label: ({ trans }) => trans.__('Set the Time Slice…'),
    caption: ({ trans }) =>
      trans.__('Set how long a notebook may keep running while others wait.'),
    parameters: () => ({
      quantum: {
        oneOf: [
          { type: 'number', exclusiveMinimum: 0, maximum: LONGEST_QUANTUM },
          { const: 'auto' }
        ]
      }
    }),
    ranks: { palette: 9, mode: 10 }
  },
  {
    command: CommandIds.toggleHibernation,
    scope: 'settings',
    label: ({ trans }) => trans.__('Hibernate Idle Notebooks'),
    caption: about => {
      const { trans } = about;
      return (
        unableText(about) ||
        trans.__(
          'Free all GPU memory of notebooks that have been idle for some time. Their next cell wakes them.'
        )
      );
    },
    isEnabled: about => !unableText(about),
    isVisible: knowsHibernation,
    isToggled: ({ status }) =>
      (status?.settings?.hibernate_after ?? null) !== null,
    ranks: { palette: 12, mode: 20 }
  },
  {
    command: CommandIds.setHibernation,
    scope: 'settings',
    label: ({ trans }) => trans.__('Set When Idle Notebooks Hibernate…'),
    caption: about => {
      const { trans } = about;
      return (
        unableText(about) ||
        trans.__('Set how long a notebook is idle before it hibernates.')
      );
    },
    isEnabled: about => !unableText(about),
    isVisible: knowsHibernation,
    parameters: trans => ({
      hibernate_after: {
        type: 'number',
        minimum: 0,
        description: trans.__('Idle time in seconds; 0: never')
      }
    }),
    ranks: { palette: 13, mode: 21 }
  },
  {
    command: CommandIds.setPolicy,
    scope: 'settings',
    label: ({ trans }) => trans.__('Choose the Policy…'),
    caption: ({ trans }) =>
      trans.__('Choose how the scheduler orders waiting notebooks.'),
    parameters: () => ({ policy: { type: 'string' } }),
    ranks: { palette: 11, mode: 11 }
  }
];

/** The row of a command. */
export function actionOf(command: string): IActionRow {
  const row = ACTIONS.find(row => row.command === command);
  if (!row) {
    throw new Error(`No action has the command ${command}.`);
  }
  return row;
}

/**
 * The entries of a menu or list, in their order; null is a separator.
 *
 * @param args - Arguments that all of them have.
 */
export function entriesOf(
  place: Place,
  args: ReadonlyJSONObject = {}
): (IEntry | null)[] {
  const entries: (IEntry | null)[] = [];
  let before: number | null = null;
  for (const { command, choices, ranks } of [...ACTIONS].sort(
    (a, b) => (a.ranks[place] ?? 0) - (b.ranks[place] ?? 0)
  )) {
    const rank = ranks[place];
    if (rank !== undefined) {
      const section = Math.floor(rank / 10);
      if (before !== null && section !== before) {
        entries.push(null);
      }
      before = section;
      for (const choice of choices ?? [{}]) {
        entries.push({ command, args: { ...args, ...choice } });
      }
    }
  }
  return entries;
}

/** The label of an action in the place that its arguments name. */
export function labelOf(
  { label, short, isNamed }: Pick<IActionRow, 'label' | 'short' | 'isNamed'>,
  about: IAbout
): string {
  const { args, trans } = about;
  if (args['isPalette']) {
    return trans.__('GPU sharing: %1', label(about));
  }
  const text = ((args['isShort'] && short) || label)(about);
  // In the menu of a document, nothing else tells the user that the entry is about the GPU.
  return args['isDocument'] && !isNamed ? gpuText(text, trans) : text;
}

/** The priority in the arguments; without one, the opposite of the current class. */
export function priorityOf(group: IGroup | null, args: Args): Priority {
  const { priority } = args;
  return priority === 'background' ||
    priority === 'interactive' ||
    priority === 'agent' ||
    priority === 'auto'
    ? priority
    : group && group.class !== 'interactive'
      ? 'interactive'
      : 'background';
}

export function modeOf(args: Args): AntiThrash {
  const mode = args['anti_thrash'];
  return mode === 'on' || mode === 'off' ? mode : 'auto';
}

function isAtWork(group: IGroup): boolean {
  return isRunning(group) || isWaiting(group) || group.cell !== null;
}

function isOrdered(group: IGroup | null): boolean {
  return group?.hibernation?.state === 'ordered';
}

/** Whether it is about to hibernate, is hibernating, or is hibernated. */
function isAsleep(group: IGroup | null): boolean {
  return ['ordered', 'parking', 'hibernating', 'hibernated', 'waking'].includes(
    group?.hibernation?.state ?? ''
  );
}

/** Why a group cannot be hibernated now; '' if it can. */
function awakeBecause({ group, status, trans }: IAbout): string {
  const hibernation = status?.hibernation;
  if (!group) {
    return '';
  }
  if (hibernation?.able === false) {
    return refusalText(hibernation, trans);
  }
  if (group.hibernation?.state === 'refused' && isFinal(group.hibernation)) {
    return refusalText(group.hibernation, trans);
  }
  return group.preferences.keep ? trans.__('it is kept on the GPU') : '';
}

/** Whether the scheduler reports when idle notebooks hibernate; older schedulers do not. */
function knowsHibernation({ status }: IAbout): boolean {
  return status?.settings?.hibernate_after !== undefined;
}

/** Why no notebook can be hibernated; '' if they can. */
function unableText({ status, trans }: IAbout): string {
  const hibernation = status?.hibernation;
  return hibernation?.able === false ? cannotText(hibernation, trans) : '';
}
