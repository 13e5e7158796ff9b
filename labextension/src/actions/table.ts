// SPDX-License-Identifier: BSD-3-Clause
import { Notification } from '@jupyterlab/apputils';
import type { CommandRegistry } from '@lumino/commands';
import type {
  ReadonlyJSONObject,
  ReadonlyPartialJSONObject
} from '@lumino/coreutils';

import type { ITranslation } from '../core/translation';
import type { AntiThrash, IGroup, ISession, Priority } from '../core/status';
import { isRunning, isWaiting } from '../core/status';
import type { IDocuments, IGpuShareModel } from '../tokens';
import { CommandIds } from '../tokens';
import { aloneText, isFinal } from '../words/refusals';

export type Args = ReadonlyPartialJSONObject;

/** The longest quantum that the scheduler takes, in seconds. */
export const LONGEST_QUANTUM = 3600;

/** After so many seconds of idleness notebooks hibernate, where people say only that they are to. */
export const USUAL_IDLENESS = 600;

export interface ICommandsOptions {
  commands: CommandRegistry;
  model: IGpuShareModel;
  documents: IDocuments;
  trans: ITranslation;
  /** Go to a document of this server. */
  open: (document: ISession) => Promise<void>;
}

/** A command with what it is about. */
export interface IEntry {
  command: string;
  args?: Args;
}

/** Run a command, and keep its failure from the page: people may have disabled what adds it. */
export function run(
  commands: CommandRegistry,
  { command, args }: IEntry
): void {
  commands.execute(command, args).catch(console.error);
}

/** For how long a failure is shown, in milliseconds. */
export const SHOWN = 10_000;

const ENTRIES: { command: string; args?: ReadonlyJSONObject }[] = [
  { command: CommandIds.openPanel },
  { command: CommandIds.release },
  { command: CommandIds.setPriority, args: { priority: 'background' } },
  { command: CommandIds.setPriority, args: { priority: 'interactive' } },
  { command: CommandIds.setPriority, args: { priority: 'auto' } },
  { command: CommandIds.toggleKeep },
  { command: CommandIds.toggleFrozen },
  { command: CommandIds.setMemory },
  { command: CommandIds.offload },
  { command: CommandIds.hibernate },
  { command: CommandIds.wake },
  { command: CommandIds.setQuantum },
  { command: CommandIds.setAntiThrash, args: { anti_thrash: 'auto' } },
  { command: CommandIds.setAntiThrash, args: { anti_thrash: 'on' } },
  { command: CommandIds.setAntiThrash, args: { anti_thrash: 'off' } },
  { command: CommandIds.setPolicy },
  { command: CommandIds.toggleHibernation },
  { command: CommandIds.setHibernation }
];

/** The palette's entries: what has arguments is there once for each choice. */
export const PALETTE: { command: string; args: ReadonlyJSONObject }[] =
  ENTRIES.map(({ command, args }) => ({
    command,
    args: { ...args, isPalette: true }
  }));

/** What a command is called: in the palette, with what it is about. */
export function entryLabel(
  label: string,
  args: Args,
  trans: ITranslation
): string {
  return args['isPalette'] ? trans.__('GPU sharing: %1', label) : label;
}

/** The priority that is asked for; without a word, the class that it has not. */
export function priorityOf(group: IGroup | null, args: Args): Priority {
  const { priority } = args;
  return priority === 'background' ||
    priority === 'interactive' ||
    priority === 'auto'
    ? priority
    : group?.class === 'background'
      ? 'interactive'
      : 'background';
}

/** The entries of a menu that choose the priority of a group. */
export function priorityEntries(group: string): IEntry[] {
  return (['background', 'interactive', 'auto'] as const).map(priority => ({
    command: CommandIds.setPriority,
    args: { group, priority }
  }));
}

export function modeOf(args: Args): AntiThrash {
  const mode = args['anti_thrash'];
  return mode === 'on' || mode === 'off' ? mode : 'auto';
}

/** What a command about a group says, and when it is possible. */
interface IGroupCommand {
  label: (group: IGroup | null, args: Args) => string;
  caption: (group: IGroup | null, args: Args) => string;
  enabled?: (group: IGroup, args: Args) => boolean;
  visible?: (group: IGroup | null, args: Args) => boolean;
  /** Whether it needs no permission. */
  free?: boolean;
  /** The schema of its arguments other than the group. */
  args?: object;
}

/** Add the commands that act on a group or on the settings; not the one that opens the panel. */
export function addCommands(options: ICommandsOptions): void {
  const { commands, model, documents, trans } = options;

  const groupOf = (args: Args): IGroup | null => {
    const id = args['group'];
    return typeof id === 'string'
      ? (model.status?.groups.find(group => group.id === id) ?? null)
      : documents.currentGroup;
  };
  const perform = async (
    command: string,
    args: Args,
    group: IGroup | null
  ): Promise<void> => {
    try {
      const actions = await import(
        /* webpackChunkName: "actions" */ './perform'
      );
      await actions.perform(command, args, group, options);
    } catch (error) {
      console.error(error);
      Notification.error(
        trans.__(
          'What this command does could not be loaded. If it does not help to try again, reload the page.'
        ),
        { autoClose: SHOWN }
      );
    }
  };

  const addForGroup = (command: string, about: IGroupCommand): void => {
    const { label, caption, enabled, visible, free = false } = about;
    const may = (): boolean => free || (model.status?.may.adjust ?? false);
    commands.addCommand(command, {
      label: args => entryLabel(label(groupOf(args), args), args, trans),
      caption: args => caption(groupOf(args), args),
      isVisible: args => may() && (visible?.(groupOf(args), args) ?? true),
      isEnabled: args => {
        const group = groupOf(args);
        return group !== null && may() && (enabled?.(group, args) ?? true);
      },
      execute: async args => {
        const group = groupOf(args);
        if (group) {
          await perform(command, args, group);
        }
      },
      describedBy: {
        args: {
          type: 'object',
          properties: {
            group: {
              type: 'string',
              description: trans.__(
                'The id of a group; left out, that of the notebook or console in front'
              )
            },
            ...about.args
          }
        }
      }
    });
  };

  addForGroup(CommandIds.goTo, {
    label: () => trans.__('Go to the Notebook'),
    caption: () => trans.__('Show the notebook or console that uses the GPU'),
    free: true,
    enabled: group => documents.of(group).length > 0
  });

  addForGroup(CommandIds.release, {
    label: () => trans.__('Release the GPU for Others'),
    caption: group => {
      const waiting = (model.status?.groups ?? []).filter(
        ({ id, state }) => state === 'waiting' && id !== group?.id
      ).length;
      const others =
        waiting > 0
          ? trans._n(
              '%1 waiting notebook gets its turn sooner.',
              '%1 waiting notebooks get their turns sooner.',
              waiting
            )
          : trans.__('No other notebook is waiting now.');
      return trans.__(
        '%1 This notebook keeps its memory on the GPU until others need the room. It queues again when it has more work.',
        others
      );
    },
    enabled: ({ state }) => ['running', 'held', 'moving'].includes(state)
  });

  addForGroup(CommandIds.offload, {
    label: () => trans.__('Move Its Memory to the Host'),
    caption: () =>
      trans.__(
        'Let others have their turn now, and free its memory on the GPU. The data is kept in host memory, and comes back when it is needed.'
      ),
    enabled: ({ gpus }) => gpus.some(({ resident }) => resident > 0)
  });

  /** Why a group cannot be hibernated now; '' if it can. */
  const awakeBecause = (group: IGroup): string => {
    const hibernation = model.status?.hibernation;
    if (hibernation?.able === false) {
      return aloneText(hibernation, trans);
    }
    if (group.hibernation?.state === 'refused' && isFinal(group.hibernation)) {
      return aloneText(group.hibernation, trans);
    }
    if (group.wishes.keep) {
      return trans.__('it is kept on the GPU');
    }
    return '';
  };
  const isAtWork = (group: IGroup): boolean =>
    isRunning(group) || isWaiting(group) || group.cell !== null;
  const isOrdered = (group: IGroup | null): boolean =>
    group?.hibernation?.state === 'ordered';
  // It is to come, has begun, or is over.
  const isAsleep = (group: IGroup | null): boolean =>
    ['ordered', 'parking', 'hibernating', 'hibernated', 'waking'].includes(
      group?.hibernation?.state ?? ''
    );

  addForGroup(CommandIds.hibernate, {
    label: group =>
      group && isAtWork(group)
        ? trans.__('Hibernate When Idle')
        : trans.__('Hibernate Now'),
    caption: group => {
      const why = group ? awakeBecause(group) : '';
      return why
        ? trans.__('It cannot be hibernated now: %1.', why)
        : trans.__(
            'Take it off the GPU altogether, the CUDA context too. Nothing is lost: its next cell wakes it.'
          );
    },
    enabled: group => awakeBecause(group) === '',
    visible: group =>
      (model.status?.hibernation ?? null) !== null && !isAsleep(group)
  });

  addForGroup(CommandIds.wake, {
    label: group =>
      isOrdered(group) ? trans.__('Do Not Hibernate') : trans.__('Wake'),
    caption: group =>
      isOrdered(group)
        ? trans.__('Take back that it hibernates as soon as it is idle.')
        : group?.hibernation?.state === 'waking'
          ? trans.__('It is being woken.')
          : trans.__('Bring it back to the GPU, before its next cell does.'),
    enabled: group => group.hibernation?.state !== 'waking',
    visible: isAsleep
  });

  addForGroup(CommandIds.setPriority, {
    label: (group, args) =>
      ({
        background: trans.__('Make Background'),
        interactive: trans.__('Make Interactive'),
        auto: trans.__('Let It Be Decided Automatically')
      })[priorityOf(group, args)],
    caption: (group, args) =>
      ({
        background: trans.__(
          'Let interactive notebooks go first. It still gets its turn.'
        ),
        interactive: trans.__('Let it come before those in the background.'),
        auto: trans.__(
          'Interactive when a cell begins, background when the cell runs long.'
        )
      })[priorityOf(group, args)],
    enabled: (group, args) => group.wishes.priority !== priorityOf(group, args),
    // What is so anyway needs no word.
    visible: (group, args) =>
      priorityOf(group, args) !== 'auto' || group?.wishes.priority !== 'auto',
    args: { priority: { enum: ['interactive', 'background', 'auto'] } }
  });

  addForGroup(CommandIds.toggleKeep, {
    label: group =>
      group?.wishes.keep
        ? trans.__('No Longer Keep on the GPU')
        : trans.__('Keep on the GPU'),
    caption: group =>
      group?.wishes.keep
        ? trans.__(
            'Let its memory leave the GPU when others need the room and it is idle.'
          )
        : trans.__(
            'Leave its memory on the GPU while it is idle, until others have waited for it for some minutes.'
          )
  });

  addForGroup(CommandIds.toggleFrozen, {
    label: group =>
      group?.wishes.frozen ? trans.__('Unfreeze') : trans.__('Freeze'),
    caption: group =>
      group?.wishes.frozen
        ? trans.__('Let it use the GPU again; it takes its place in the queue.')
        : trans.__(
            'Take the GPU from it until it is unfrozen. Its cell stands still, and its memory may leave; nothing is lost.'
          )
  });

  addForGroup(CommandIds.setMemory, {
    label: () => trans.__('Limit Its Memory…'),
    caption: () =>
      trans.__(
        'Set how much memory it may have on each GPU. What it has beyond that stays; more is refused as if the GPU were full.'
      ),
    args: {
      memory: {
        type: 'number',
        minimum: 0,
        description: trans.__('Bytes on each GPU; 0: no limit')
      }
    }
  });

  const maySet = (): boolean =>
    (model.status?.may.settings ?? false) && model.status?.settings !== null;

  commands.addCommand(CommandIds.setAntiThrash, {
    label: args =>
      entryLabel(
        {
          on: trans.__('Run One Notebook at a Time'),
          off: trans.__('Never Take Turns'),
          auto: trans.__('Take Turns When Memory Is Short')
        }[modeOf(args)],
        args,
        trans
      ),
    caption: args => {
      switch (modeOf(args)) {
        case 'on':
          return trans.__(
            'Anti-thrash mode on: one notebook runs on a GPU at a time, even if the memory is enough for several.'
          );
        case 'off':
          return trans.__(
            'Anti-thrash mode off: notebooks whose memory the driver can page run side by side, even if it is not enough.'
          );
        default:
          return trans.__(
            'Anti-thrash mode auto: notebooks run side by side as long as their memory fits.'
          );
      }
    },
    isVisible: maySet,
    isEnabled: maySet,
    isToggleable: true,
    isToggled: args => model.status?.settings?.anti_thrash === modeOf(args),
    execute: args => perform(CommandIds.setAntiThrash, args, null),
    describedBy: {
      args: {
        type: 'object',
        properties: { anti_thrash: { enum: ['auto', 'on', 'off'] } }
      }
    }
  });

  commands.addCommand(CommandIds.setQuantum, {
    label: args => entryLabel(trans.__('Set the Quantum…'), args, trans),
    caption: trans.__(
      'Set for how long a notebook may run while others wait for its room.'
    ),
    isVisible: maySet,
    isEnabled: maySet,
    execute: args => perform(CommandIds.setQuantum, args, null),
    describedBy: {
      args: {
        type: 'object',
        properties: {
          quantum: {
            oneOf: [
              { type: 'number', exclusiveMinimum: 0, maximum: LONGEST_QUANTUM },
              { const: 'auto' }
            ]
          }
        }
      }
    }
  });

  commands.addCommand(CommandIds.setPolicy, {
    label: args => entryLabel(trans.__('Choose the Policy…'), args, trans),
    caption: trans.__(
      'Choose the rules by which notebooks come before each other.'
    ),
    isVisible: maySet,
    isEnabled: maySet,
    execute: args => perform(CommandIds.setPolicy, args, null),
    describedBy: {
      args: { type: 'object', properties: { policy: { type: 'string' } } }
    }
  });

  const mayHibernate = (): boolean =>
    maySet() && model.status?.settings?.hibernate_after !== undefined;
  const unable = (): string => {
    const hibernation = model.status?.hibernation;
    return hibernation?.able === false ? aloneText(hibernation, trans) : '';
  };

  commands.addCommand(CommandIds.toggleHibernation, {
    label: args =>
      entryLabel(trans.__('Hibernate Idle Notebooks'), args, trans),
    caption: () =>
      unable()
        ? trans.__('Notebooks cannot be hibernated: %1.', unable())
        : trans.__(
            'Take notebooks off the GPU altogether when they have been idle for some time. Their next cell wakes them.'
          ),
    isVisible: mayHibernate,
    isEnabled: () => mayHibernate() && !unable(),
    isToggleable: true,
    isToggled: () => (model.status?.settings?.hibernate_after ?? null) !== null,
    execute: args => perform(CommandIds.toggleHibernation, args, null),
    describedBy: { args: { type: 'object', properties: {} } }
  });

  commands.addCommand(CommandIds.setHibernation, {
    label: args =>
      entryLabel(trans.__('Set When Idle Notebooks Hibernate…'), args, trans),
    caption: () =>
      unable()
        ? trans.__('Notebooks cannot be hibernated: %1.', unable())
        : trans.__(
            'Set for how long a notebook is idle before it is taken off the GPU.'
          ),
    isVisible: mayHibernate,
    isEnabled: () => mayHibernate() && !unable(),
    execute: args => perform(CommandIds.setHibernation, args, null),
    describedBy: {
      args: {
        type: 'object',
        properties: {
          hibernate_after: {
            type: 'number',
            minimum: 0,
            description: trans.__('Seconds of idleness; 0: never')
          }
        }
      }
    }
  });

  // The palette and menus ask again when they are told that something changed, which is
  // seldom; the status changes all the time.
  let last = '';
  const update = (): void => {
    const { status } = model;
    const group = documents.currentGroup;
    const now = JSON.stringify([
      group && [
        ...[group.id, group.state, group.class, group.wishes],
        group.hibernation
      ],
      status?.may,
      status?.hibernation,
      status?.settings
    ]);
    if (now !== last) {
      last = now;
      for (const command of Object.values(CommandIds)) {
        if (commands.hasCommand(command)) {
          commands.notifyCommandChanged(command);
        }
      }
    }
  };
  model.changed.connect(update);
  documents.changed.connect(update);
}
