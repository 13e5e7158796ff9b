// SPDX-License-Identifier: BSD-3-Clause
import {
  Dialog,
  InputDialog,
  Notification,
  showDialog
} from '@jupyterlab/apputils';

import { formatBytes, parseBytes } from '../core/format';
import type { IGroup } from '../core/status';
import type { IAction } from '../tokens';
import { CommandIds } from '../tokens';
import { isolate, shortName } from '../words/names';
import type { Args, ICommandsOptions } from './table';
import {
  LONGEST_QUANTUM,
  modeOf,
  priorityOf,
  SHOWN,
  USUAL_IDLENESS
} from './table';

/**
 * What the commands do when somebody chooses one: ask, if it is dangerous or needs a
 * value, then do it, and say why if it fails. Loaded with the first that is chosen.
 */
export async function perform(
  command: string,
  args: Args,
  group: IGroup | null,
  options: ICommandsOptions
): Promise<void> {
  try {
    if (command === CommandIds.goTo) {
      await goTo(group, options);
      return;
    }
    const action = group
      ? await adjust(command, args, group, options)
      : await set(command, args, options);
    if (action) {
      await options.model.act(action);
    }
  } catch (error) {
    Notification.error((error as Error).message, { autoClose: SHOWN });
  }
}

async function goTo(
  group: IGroup | null,
  { documents, open }: ICommandsOptions
): Promise<void> {
  const all = group ? documents.of(group) : [];
  const document = all.find(({ type }) => type !== 'console') ?? all[0];
  if (document) {
    await open(document);
  }
}

/** What to do about a group; null if people change their minds. */
async function adjust(
  command: string,
  args: Args,
  group: IGroup,
  options: ICommandsOptions
): Promise<IAction | null> {
  const { model, documents, trans } = options;
  const name = isolate(
    (model.status && documents.names(model.status).get(group.id)) ??
      shortName(group.name)
  );
  const { id, wishes } = group;
  switch (command) {
    case CommandIds.release:
      return { op: 'release', group: id };
    case CommandIds.hibernate:
      return { op: 'hibernate', group: id };
    case CommandIds.wake:
      return { op: 'wake', group: id };
    case CommandIds.offload: {
      const agreed =
        (group.state === 'idle' && group.cell === null) ||
        (await confirm(
          options,
          trans.__('Move the memory of %1 to the host?', name),
          trans.__(
            'It is in use. Its cell stands still until the memory is back on the GPU, which may take a while. Nothing is lost.'
          ),
          trans.__('Move')
        ));
      return agreed ? { op: 'offload', group: id } : null;
    }
    case CommandIds.setPriority:
      return { op: 'adjust', group: id, priority: priorityOf(group, args) };
    case CommandIds.toggleKeep:
      return { op: 'adjust', group: id, keep: !wishes.keep };
    case CommandIds.toggleFrozen: {
      const agreed =
        wishes.frozen ||
        (await confirm(
          options,
          trans.__('Freeze %1?', name),
          trans.__(
            'It does not get the GPU until somebody unfreezes it: a cell that uses the GPU stands still. Nothing is lost.'
          ),
          trans.__('Freeze')
        ));
      return agreed
        ? { op: 'adjust', group: id, frozen: !wishes.frozen }
        : null;
    }
    case CommandIds.setMemory: {
      const { units } = model.preferences;
      const example = formatBytes(
        units === 'binary' ? 20 * 2 ** 30 : 20e9,
        units
      );
      const memory =
        typeof args['memory'] === 'number'
          ? args['memory']
          : await ask(
              options,
              trans.__('Limit the memory of %1', name),
              trans.__(
                'On each GPU, for example %1; nothing: no limit',
                example
              ),
              wishes.memory > 0 ? formatBytes(wishes.memory, units) : '',
              text =>
                (text === '' ? 0 : parseBytes(text, units)) ??
                trans.__('"%1" is not a size. Write one as %2.', text, example)
            );
      return memory === null ? null : { op: 'adjust', group: id, memory };
    }
    default:
      return null;
  }
}

/** How to change the settings; null if people change their minds. */
async function set(
  command: string,
  args: Args,
  options: ICommandsOptions
): Promise<IAction | null> {
  const { commands, model, trans } = options;
  if (command === CommandIds.setAntiThrash) {
    const mode = modeOf(args);
    const agreed =
      mode === 'auto' ||
      (await confirm(
        options,
        commands.label(command, { anti_thrash: mode }),
        mode === 'on'
          ? trans.__(
              'This holds for all notebooks that share these GPUs. Those that could run side by side will wait for each other.'
            )
          : trans.__(
              'This holds for all notebooks that share these GPUs. When their memory does not fit, all of them may become very slow.'
            ),
        trans.__('Change')
      ));
    return agreed ? { op: 'settings', anti_thrash: mode } : null;
  }
  if (command === CommandIds.setQuantum) {
    const given = args['quantum'];
    const now = model.status?.settings?.quantum ?? 'auto';
    const quantum =
      typeof given === 'number' || given === 'auto'
        ? given
        : await ask<number | null>(
            options,
            trans.__('Set the quantum'),
            trans.__(
              'Seconds; nothing: chosen by how long the memory takes to move'
            ),
            now === 'auto' ? '' : String(now),
            text => {
              const seconds = Number(text.replace(',', '.'));
              return text === ''
                ? AUTO
                : seconds > 0 && seconds <= LONGEST_QUANTUM
                  ? seconds
                  : trans.__(
                      '"%1" is not a number of seconds above 0 and at most %2.',
                      text,
                      LONGEST_QUANTUM
                    );
            }
          );
    return quantum === null
      ? null
      : { op: 'settings', quantum: quantum === AUTO ? 'auto' : quantum };
  }
  if (command === CommandIds.toggleHibernation) {
    const isOn = (model.status?.settings?.hibernate_after ?? null) !== null;
    return { op: 'settings', hibernate_after: isOn ? 0 : USUAL_IDLENESS };
  }
  if (command === CommandIds.setHibernation) {
    const given = args['hibernate_after'];
    const now = model.status?.settings?.hibernate_after ?? null;
    const hibernate_after =
      typeof given === 'number'
        ? given
        : await ask<number>(
            options,
            trans.__('Hibernate idle notebooks'),
            trans.__(
              'Minutes for which a notebook is idle before it hibernates; nothing: never'
            ),
            now === null ? '' : String(now / 60),
            text => {
              const minutes = Number(text.replace(',', '.'));
              return text === ''
                ? 0
                : minutes > 0 && minutes <= LONGEST_IDLENESS
                  ? 60 * minutes
                  : trans.__(
                      '"%1" is not a number of minutes above 0 and at most %2.',
                      text,
                      LONGEST_IDLENESS
                    );
            }
          );
    return hibernate_after === null
      ? null
      : { op: 'settings', hibernate_after };
  }
  if (command === CommandIds.setPolicy) {
    const { policy: now = '', policies } = model.status?.settings ?? {};
    const policy =
      typeof args['policy'] === 'string'
        ? args['policy']
        : await choose(
            options,
            trans.__('Choose the policy'),
            trans.__('This holds for all notebooks that share these GPUs.'),
            policies ?? null,
            now
          );
    return policy === null ? null : { op: 'settings', policy };
  }
  return null;
}

/** The longest time of idleness that the scheduler takes: 30 days, in minutes. */
const LONGEST_IDLENESS = 30 * 24 * 60;

/** A quantum that the scheduler chooses. */
const AUTO = 0;

async function confirm(
  { trans }: ICommandsOptions,
  title: string,
  body: string,
  label: string
): Promise<boolean> {
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
}

/** Ask for one of some names; for any, where nobody says which there are. */
async function choose(
  { trans }: ICommandsOptions,
  title: string,
  label: string,
  items: string[] | null,
  current: string
): Promise<string | null> {
  const answer = await InputDialog.getItem({
    title,
    label,
    items: items ?? [current],
    // Only a list that takes other names knows the current one by its name.
    current: items ? items.indexOf(current) : current,
    editable: items === null,
    cancelLabel: trans.__('Cancel'),
    okLabel: trans.__('Set')
  });
  return (answer.button.accept && answer.value?.trim()) || null;
}

/**
 * Ask for a text until it is a good one.
 *
 * @param parse - Its value, or a sentence that says what is wrong with it.
 * @returns Null if people change their minds.
 */
async function ask<T>(
  { trans }: ICommandsOptions,
  title: string,
  label: string,
  text: string,
  parse: (text: string) => T | string
): Promise<T | null> {
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
    text = (answer.value ?? '').trim();
    const value = parse(text);
    if (typeof value !== 'string') {
      return value;
    }
    label = value;
  }
}
