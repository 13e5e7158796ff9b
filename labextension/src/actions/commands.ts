// SPDX-License-Identifier: BSD-3-Clause
import { Notification } from '@jupyterlab/apputils';
import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';
import { DisposableDelegate, DisposableSet } from '@lumino/disposable';

import type { IGroup } from '../core/status';
import { isAway } from '../core/status';
import { CommandIds } from '../tokens';
import { nameIn } from '../words/mentions';
import type { ICommandsOptions } from './options';
import { SHOWN } from './options';
import type { Args, IAbout, IActionRow } from './table';
import { ACTIONS, labelOf } from './table';

/** Add the commands that act on a group or on the settings. The panel adds the command that opens it. */
export function addCommands(options: ICommandsOptions): IDisposable {
  const { commands } = options;
  const added = new DisposableSet();
  for (const row of ACTIONS) {
    if (row.scope !== 'page') {
      added.add(commands.addCommand(row.command, optionsOf(row, options)));
    }
  }
  added.add(notifyOfChanges(options));
  return added;
}

function optionsOf(
  row: IActionRow,
  options: ICommandsOptions
): CommandRegistry.ICommandOptions {
  const { model, documents, trans } = options;
  const { isToggled } = row;

  const groupOf = (args: Args): IGroup | null => {
    if (row.scope === 'settings') {
      return null;
    }
    const id = args['isContext'] ? options.groupAt?.() : args['group'];
    return typeof id === 'string'
      ? (model.status?.groups.find(group => group.id === id) ?? null)
      : args['isContext']
        ? null
        : documents.currentGroup;
  };
  const aboutOf = (args: Args): IAbout => {
    const group = groupOf(args);
    const hasDocument = group !== null && documents.of(group).length > 0;
    return {
      args,
      group,
      // Looked up only for the labels that contain it.
      get name() {
        return group && model.status
          ? nameIn(documents.names(model.status), group)
          : '';
      },
      status: model.status,
      hasDocument,
      trans
    };
  };
  const may = (): boolean => {
    const { status } = model;
    switch (row.scope) {
      case 'settings':
        return (status?.may.settings ?? false) && status?.settings !== null;
      default:
        return row.isFree || (status?.may.adjust ?? false);
    }
  };
  const isVisible = (about: IAbout): boolean =>
    may() &&
    // Most documents do not use the GPU, and their menus stay as they are.
    (about.group !== null || about.args['isDocument'] !== true) &&
    (row.isVisible?.(about) ?? true);

  return {
    label: args => labelOf(row, aboutOf(args)),
    caption: args => row.caption(aboutOf(args)),
    isVisible: args => isVisible(aboutOf(args)),
    isEnabled: args => {
      const about = aboutOf(args);
      const isThere =
        row.scope === 'settings' ? isVisible(about) : about.group !== null;
      return isThere && may() && (row.isEnabled?.(about) ?? true);
    },
    isToggleable: isToggled !== undefined,
    isToggled: isToggled && (args => isToggled(aboutOf(args))),
    execute: async args => {
      const group = groupOf(args);
      if (group !== null || row.scope === 'settings') {
        await perform(row.command, args, group, options);
      }
    },
    describedBy: {
      args: {
        type: 'object',
        properties: {
          ...(row.scope === 'notebook' && {
            group: {
              type: 'string',
              description: trans.__(
                'Group ID; defaults to the active notebook or console'
              )
            }
          }),
          ...row.parameters?.(trans)
        }
      }
    }
  };
}

async function perform(
  command: string,
  args: Args,
  group: IGroup | null,
  options: ICommandsOptions
): Promise<void> {
  const { trans } = options;
  try {
    const actions = await import(/* webpackChunkName: "actions" */ './perform');
    await actions.perform(command, args, group, options);
  } catch (error) {
    console.error(error);
    Notification.error(
      trans.__(
        'This command failed to load. Try again; if that does not help, reload the page.'
      ),
      { autoClose: SHOWN }
    );
  }
}

/**
 * Notify the palette and menus when labels or states may have changed. They update all entries
 * then, so this must not happen with every change of the status.
 */
function notifyOfChanges({
  commands,
  model,
  documents
}: ICommandsOptions): IDisposable {
  let last = '';
  const update = (): void => {
    const { status } = model;
    const group = documents.currentGroup;
    const now = JSON.stringify([
      group && [
        ...[group.id, group.state, group.class, group.preferences],
        ...[group.hibernation, isAway(group)]
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
  return new DisposableDelegate(() => {
    model.changed.disconnect(update);
    documents.changed.disconnect(update);
  });
}
