// SPDX-License-Identifier: BSD-3-Clause
import {
  Dialog,
  InputDialog,
  Notification,
  showDialog
} from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import type {
  ReadonlyJSONObject,
  ReadonlyPartialJSONObject
} from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { DisposableSet } from '@lumino/disposable';

import type { IDocuments } from './documents';
import { formatBytes, parseBytes } from './format';
import type { AntiThrash, IGroup, ISession, Priority } from './status';
import type { IAction, IGpuShareModel } from './tokens';
import { CommandIds } from './tokens';
import { shortName } from './words';

type Args = ReadonlyPartialJSONObject;

/** What JupyterLab calls at each question about a command. */
type Options = CommandRegistry.ICommandOptions;

/** The longest quantum that the scheduler takes, in seconds. */
const LONGEST_QUANTUM = 3600;

export interface ICommandsOptions {
  commands: CommandRegistry;
  model: IGpuShareModel;
  documents: IDocuments;
  trans: TranslationBundle;
  /** Go to a document of this server. */
  open: (document: ISession) => Promise<void>;
}

/** The palette's entries: what has arguments is there once for each choice. */
export const PALETTE: { command: string; args?: ReadonlyJSONObject }[] = [
  { command: CommandIds.openPanel },
  { command: CommandIds.release },
  { command: CommandIds.setPriority, args: { priority: 'background' } },
  { command: CommandIds.setPriority, args: { priority: 'interactive' } },
  { command: CommandIds.toggleKeep },
  { command: CommandIds.toggleFrozen },
  { command: CommandIds.setLimit },
  { command: CommandIds.offload },
  { command: CommandIds.setQuantum },
  { command: CommandIds.setAntiThrash, args: { anti_thrash: 'auto' } },
  { command: CommandIds.setAntiThrash, args: { anti_thrash: 'on' } },
  { command: CommandIds.setAntiThrash, args: { anti_thrash: 'off' } }
];

/** Add the commands that act on a group or on the settings; not the one that opens the panel. */
export function addCommands(options: ICommandsOptions): IDisposable {
  const { commands, model, documents, trans, open } = options;
  const added = new DisposableSet();

  const groupOf = (args: Args): IGroup | null => {
    const id = args['group'];
    return typeof id === 'string'
      ? (model.status?.groups.find(group => group.id === id) ?? null)
      : documents.currentGroup;
  };
  const nameOf = (group: IGroup): string =>
    (model.status && documents.names(model.status).get(group.id)) ??
    shortName(group.name);
  const mayAdjust = (): boolean => model.status?.may.adjust ?? false;
  const maySet = (): boolean =>
    model.status?.settings !== null && (model.status?.may.settings ?? false);
  const act = async (action: IAction): Promise<void> => {
    try {
      await model.act(action);
    } catch (error) {
      Notification.error((error as Error).message, { autoClose: 10_000 });
    }
  };
  const confirm = async (
    title: string,
    body: string,
    label: string
  ): Promise<boolean> => {
    const answer = await showDialog({
      title,
      body,
      buttons: [
        Dialog.cancelButton({ label: trans.__('Cancel') }),
        Dialog.warnButton({ label })
      ],
      defaultButton: 0
    });
    return answer.button.accept;
  };
  /** Ask until the text is a good one; null if people change their minds. */
  const ask = async <T>(
    title: string,
    label: string,
    text: string,
    parse: (text: string) => T | string
  ): Promise<T | null> => {
    for (;;) {
      const answer = await InputDialog.getText({
        title,
        label,
        text,
        cancelLabel: trans.__('Cancel'),
        okLabel: trans.__('Set')
      });
      if (!answer.button.accept) {
        return null;
      }
      text = answer.value ?? '';
      const value = parse(text.trim());
      if (typeof value !== 'string') {
        return value;
      }
      label = value;
    }
  };

  const groupArgument = {
    group: {
      type: 'string',
      description: trans.__(
        'The id of a group; left out, that of the notebook or console in front'
      )
    }
  };
  /** A command about a group. */
  const addForGroup = (
    id: string,
    command: {
      label: (group: IGroup | null, args: Args) => string;
      caption: (args: Args) => string;
      enabled: (group: IGroup, args: Args) => boolean;
      toggled?: (group: IGroup, args: Args) => boolean;
      /** Whether it needs no permission. */
      free?: boolean;
      execute: (group: IGroup, args: Args) => Promise<void>;
      args?: object;
    }
  ): void => {
    const { label, caption, enabled, toggled, free, execute } = command;
    const about: Options = {
      label: args => label(groupOf(args), args),
      caption: args => caption(args),
      isVisible: () => free === true || mayAdjust(),
      isEnabled: args => {
        const group = groupOf(args);
        return (
          group !== null &&
          (free === true || mayAdjust()) &&
          enabled(group, args)
        );
      },
      execute: async args => {
        const group = groupOf(args);
        if (group) {
          await execute(group, args);
        }
      },
      describedBy: {
        args: {
          type: 'object',
          properties: { ...groupArgument, ...command.args }
        }
      }
    };
    if (toggled) {
      about.isToggleable = true;
      about.isToggled = args => {
        const group = groupOf(args);
        return group !== null && toggled(group, args);
      };
    }
    added.add(commands.addCommand(id, about));
  };

  addForGroup(CommandIds.goTo, {
    label: () => trans.__('Go to the Notebook'),
    caption: () => trans.__('Show the notebook or console that uses the GPU'),
    free: true,
    enabled: group => documents.of(group).length > 0,
    execute: async group => {
      const all = documents.of(group);
      const document = all.find(({ type }) => type !== 'console') ?? all[0];
      if (document) {
        try {
          await open(document);
        } catch (error) {
          Notification.error((error as Error).message, { autoClose: 10_000 });
        }
      }
    }
  });

  addForGroup(CommandIds.release, {
    label: () => trans.__('Release the GPU'),
    caption: () =>
      trans.__(
        'Let others have their turn now. Its memory stays where it is until they need the room; it queues again when it has more to do.'
      ),
    enabled: ({ state }) => ['running', 'held', 'moving'].includes(state),
    execute: group => act({ op: 'release', group: group.id })
  });

  addForGroup(CommandIds.offload, {
    label: () => trans.__('Move Its Memory to the Host'),
    caption: () =>
      trans.__(
        'Let others have their turn now, and free its memory on the GPU. The data is kept in host memory, and comes back when it is needed.'
      ),
    enabled: ({ gpus }) => gpus.some(({ resident }) => resident > 0),
    execute: async group => {
      const busy = group.state !== 'idle' || group.cell !== null;
      if (
        !busy ||
        (await confirm(
          trans.__('Move the memory of %1 to the host?', nameOf(group)),
          trans.__(
            'It is in use. Its cell stands still until the memory is back on the GPU, which may take a while. Nothing is lost.'
          ),
          trans.__('Move')
        ))
      ) {
        await act({ op: 'offload', group: group.id });
      }
    }
  });

  const priorityOf = (group: IGroup | null, args: Args): Priority =>
    args['priority'] === 'background' || args['priority'] === 'interactive'
      ? args['priority']
      : group?.wishes.priority === 'background'
        ? 'interactive'
        : 'background';
  addForGroup(CommandIds.setPriority, {
    label: (group, args) =>
      priorityOf(group, args) === 'background'
        ? trans.__('Make Background')
        : trans.__('Make Interactive'),
    caption: args =>
      priorityOf(groupOf(args), args) === 'background'
        ? trans.__(
            'Let interactive notebooks go first. It still gets its turn.'
          )
        : trans.__('Let it come before those in the background.'),
    enabled: (group, args) => group.wishes.priority !== priorityOf(group, args),
    execute: (group, args) =>
      act({
        op: 'adjust',
        group: group.id,
        priority: priorityOf(group, args)
      }),
    args: { priority: { enum: ['interactive', 'background'] } }
  });

  addForGroup(CommandIds.toggleKeep, {
    label: group =>
      group?.wishes.keep
        ? trans.__('No Longer Keep on the GPU')
        : trans.__('Keep on the GPU'),
    caption: args =>
      groupOf(args)?.wishes.keep
        ? trans.__(
            'Let its memory leave the GPU when others need the room and it is idle.'
          )
        : trans.__(
            'Leave its memory on the GPU while it is idle, until others have waited for it for some minutes.'
          ),
    enabled: () => true,
    toggled: group => group.wishes.keep,
    execute: group =>
      act({ op: 'adjust', group: group.id, keep: !group.wishes.keep })
  });

  addForGroup(CommandIds.toggleFrozen, {
    label: group =>
      group?.wishes.frozen ? trans.__('Thaw') : trans.__('Freeze'),
    caption: args =>
      groupOf(args)?.wishes.frozen
        ? trans.__('Let it use the GPU again; it takes its place in the queue.')
        : trans.__(
            'Take the GPU from it until it is thawed. Its cell stands still, and its memory may leave; nothing is lost.'
          ),
    enabled: () => true,
    toggled: group => group.wishes.frozen,
    execute: async group => {
      const frozen = !group.wishes.frozen;
      if (
        !frozen ||
        (await confirm(
          trans.__('Freeze %1?', nameOf(group)),
          trans.__(
            'It does not get the GPU until somebody thaws it: a cell that uses the GPU stands still. Nothing is lost.'
          ),
          trans.__('Freeze')
        ))
      ) {
        await act({ op: 'adjust', group: group.id, frozen });
      }
    }
  });

  addForGroup(CommandIds.setLimit, {
    label: () => trans.__('Limit Its Memory…'),
    caption: () =>
      trans.__(
        'Set how much memory it may have on each GPU. What it has beyond that stays; more is refused as if the GPU were full.'
      ),
    enabled: () => true,
    execute: async (group, args) => {
      const { units } = model.preferences;
      const example = formatBytes(
        units === 'binary' ? 20 * 2 ** 30 : 20e9,
        units
      );
      const { limit } = group.wishes;
      const bytes =
        typeof args['limit'] === 'number'
          ? args['limit']
          : await ask(
              trans.__('Limit the memory of %1', nameOf(group)),
              trans.__(
                'On each GPU, for example %1; nothing: no limit',
                example
              ),
              limit > 0 ? formatBytes(limit, units) : '',
              text =>
                (text === '' ? 0 : parseBytes(text, units)) ??
                trans.__('"%1" is not a size. Write one as %2.', text, example)
            );
      if (bytes !== null) {
        await act({ op: 'adjust', group: group.id, limit: bytes });
      }
    },
    args: {
      limit: {
        type: 'number',
        minimum: 0,
        description: trans.__('Bytes on each GPU; 0: no limit')
      }
    }
  });

  const modeOf = (args: Args): AntiThrash => {
    const mode = args['anti_thrash'];
    return mode === 'on' || mode === 'off' ? mode : 'auto';
  };
  added.add(
    commands.addCommand(CommandIds.setAntiThrash, {
      label: args => {
        switch (modeOf(args)) {
          case 'on':
            return trans.__('Run One Notebook at a Time');
          case 'off':
            return trans.__('Never Take Turns');
          default:
            return trans.__('Take Turns When Memory Is Short');
        }
      },
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
      execute: async args => {
        const mode = modeOf(args);
        if (
          mode === 'auto' ||
          (await confirm(
            commands.label(CommandIds.setAntiThrash, args),
            mode === 'on'
              ? trans.__(
                  'This holds for all notebooks that share these GPUs. Those that could run side by side will wait for each other.'
                )
              : trans.__(
                  'This holds for all notebooks that share these GPUs. When their memory does not fit, all of them may become very slow.'
                ),
            trans.__('Change')
          ))
        ) {
          await act({ op: 'settings', anti_thrash: mode });
        }
      },
      describedBy: {
        args: {
          type: 'object',
          properties: { anti_thrash: { enum: ['auto', 'on', 'off'] } }
        }
      }
    })
  );

  added.add(
    commands.addCommand(CommandIds.setQuantum, {
      label: trans.__('Set the Quantum…'),
      caption: trans.__(
        'Set for how long a notebook may run while others wait for its room.'
      ),
      isVisible: maySet,
      isEnabled: maySet,
      execute: async args => {
        const given = args['quantum'];
        const quantum =
          typeof given === 'number' || given === 'auto'
            ? given
            : await ask<number | { auto: true }>(
                trans.__('Set the quantum'),
                trans.__(
                  'Seconds, or nothing: chosen by how long the memory takes to move'
                ),
                model.status?.settings?.quantum === 'auto'
                  ? ''
                  : String(model.status?.settings?.quantum ?? ''),
                text => {
                  if (text === '' || text === 'auto') {
                    return { auto: true };
                  }
                  const seconds = Number(text.replace(',', '.'));
                  return seconds > 0 && seconds <= LONGEST_QUANTUM
                    ? seconds
                    : trans.__(
                        '"%1" is not a number of seconds above 0 and at most %2.',
                        text,
                        LONGEST_QUANTUM
                      );
                }
              );
        if (quantum !== null) {
          await act({
            op: 'settings',
            quantum: typeof quantum === 'object' ? 'auto' : quantum
          });
        }
      },
      describedBy: {
        args: {
          type: 'object',
          properties: {
            quantum: {
              oneOf: [
                {
                  type: 'number',
                  exclusiveMinimum: 0,
                  maximum: LONGEST_QUANTUM
                },
                { const: 'auto' }
              ]
            }
          }
        }
      }
    })
  );

  // What asks about commands only when it is told to, such as the palette, is told only
  // when something about them changed.
  let last = '';
  const update = (): void => {
    const { status } = model;
    const group = documents.currentGroup;
    const now = JSON.stringify([
      group && [group.id, group.state, group.wishes],
      status?.may,
      status?.settings
    ]);
    if (now !== last) {
      last = now;
      for (const id of Object.values(CommandIds)) {
        if (commands.hasCommand(id)) {
          commands.notifyCommandChanged(id);
        }
      }
    }
  };
  model.changed.connect(update);
  documents.changed.connect(update);
  return added;
}
