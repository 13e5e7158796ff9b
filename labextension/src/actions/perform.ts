// SPDX-License-Identifier: BSD-3-Clause
import {
  Dialog,
  InputDialog,
  Notification,
  showDialog
} from '@jupyterlab/apputils';

import { formatBytes, parseBytes } from '../core/format';
import type { IGroup } from '../core/status';
import type { ITranslation } from '../core/translation';
import type { IAction } from '../tokens';
import { CommandIds } from '../tokens';
import { isolate, shortName } from '../words/mentions';
import type { ICommandsOptions } from './options';
import { SHOWN } from './options';
import type { Args } from './table';
import { LONGEST_QUANTUM, modeOf, priorityOf } from './table';

/** An action on one notebook or, without a group, on all. */
interface IChoice {
  args: Args;
  options: ICommandsOptions;
}

interface IGroupChoice extends IChoice {
  group: IGroup;
  /** The name of the notebook for sentences. */
  name: string;
}

/** The request to the server; null if the user cancels. */
type Decision = IAction | null | Promise<IAction | null>;

/**
 * Perform an action: ask first if it is dangerous or needs a value, and show the reason if it
 * fails. Loaded when an action is first chosen.
 */
export async function perform(
  command: string,
  args: Args,
  group: IGroup | null,
  options: ICommandsOptions
): Promise<void> {
  const { model, documents } = options;
  try {
    if (command === CommandIds.goTo) {
      await goTo(group, options);
      return;
    }
    const action = await (group
      ? ABOUT_GROUP[command]?.({
          args,
          options,
          group,
          name: isolate(
            (model.status && documents.names(model.status).get(group.id)) ??
              shortName(group.name)
          )
        })
      : ABOUT_SETTINGS[command]?.({ args, options }));
    if (action) {
      await model.act(action);
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

const ABOUT_GROUP: Readonly<
  Record<string, (choice: IGroupChoice) => Decision>
> = {
  [CommandIds.release]: ({ group }) => ({ op: 'release', group: group.id }),
  [CommandIds.hibernate]: ({ group }) => ({ op: 'hibernate', group: group.id }),
  [CommandIds.wake]: ({ group }) => ({ op: 'wake', group: group.id }),
  [CommandIds.ready]: ({ group }) => ({ op: 'ready', group: group.id }),
  [CommandIds.evict]: evict,
  [CommandIds.setPriority]: ({ group, args }) => ({
    op: 'adjust',
    group: group.id,
    priority: priorityOf(group, args)
  }),
  [CommandIds.toggleKeep]: ({ group }) => ({
    op: 'adjust',
    group: group.id,
    keep: !group.preferences.keep
  }),
  [CommandIds.toggleFrozen]: toggleFrozen,
  [CommandIds.setMemory]: setMemory
};

const ABOUT_SETTINGS: Readonly<Record<string, (choice: IChoice) => Decision>> =
  {
    [CommandIds.setAntiThrash]: setAntiThrash,
    [CommandIds.setQuantum]: setQuantum,
    [CommandIds.toggleHibernation]: ({ options: { model } }) => {
      const isOn = (model.status?.settings?.hibernate_after ?? null) !== null;
      return { op: 'settings', hibernate_after: isOn ? 0 : USUAL_IDLENESS };
    },
    [CommandIds.setHibernation]: setHibernation,
    [CommandIds.setPolicy]: setPolicy
  };

async function evict({
  group,
  name,
  options
}: IGroupChoice): Promise<IAction | null> {
  const { trans } = options;
  const isAgreed =
    (group.state === 'idle' && group.cell === null) ||
    (await confirm(
      options,
      trans.__('Evict the memory of %1?', name),
      trans.__(
        'The memory is in use. The cell pauses until the memory has been restored to the GPU, which can take a while. Nothing is lost.'
      ),
      trans.__('Move')
    ));
  return isAgreed ? { op: 'evict', group: group.id } : null;
}

async function toggleFrozen({
  group,
  name,
  options
}: IGroupChoice): Promise<IAction | null> {
  const { trans } = options;
  const { frozen } = group.preferences;
  const isAgreed =
    frozen ||
    (await confirm(
      options,
      trans.__('Freeze %1?', name),
      trans.__(
        'The notebook cannot use the GPU until you unfreeze it. A cell that needs the GPU pauses. Nothing is lost.'
      ),
      options.commands.label(CommandIds.toggleFrozen, { group: group.id })
    ));
  return isAgreed ? { op: 'adjust', group: group.id, frozen: !frozen } : null;
}

async function setMemory({
  group,
  name,
  args,
  options
}: IGroupChoice): Promise<IAction | null> {
  const { model, trans } = options;
  const { units } = model.preferences;
  const given = args['memory'];
  const now = group.preferences.memory;
  const example = formatBytes(units === 'binary' ? 20 * 2 ** 30 : 20e9, units);
  const memory =
    typeof given === 'number'
      ? given
      : await ask(
          options,
          trans.__('Limit the memory of %1', name),
          trans.__(
            'On each GPU, for example %1. Leave empty for no limit.',
            example
          ),
          now > 0 ? formatBytes(now, units) : '',
          text =>
            (text === '' ? 0 : parseBytes(text, units)) ??
            trans.__(
              'Invalid size "%1". Use a number with a unit, such as %2.',
              text,
              example
            )
        );
  return memory === null ? null : { op: 'adjust', group: group.id, memory };
}

async function setAntiThrash({
  args,
  options
}: IChoice): Promise<IAction | null> {
  const { commands, trans } = options;
  const mode = modeOf(args);
  const isAgreed =
    mode === 'auto' ||
    (await confirm(
      options,
      commands.label(CommandIds.setAntiThrash, { anti_thrash: mode }),
      mode === 'on'
        ? trans.__(
            'This applies to all notebooks that share these GPUs. Notebooks that could run side by side will wait for each other.'
          )
        : trans.__(
            'This applies to all notebooks that share these GPUs. If their memory does not fit, all of them can become very slow.'
          ),
      trans.__('Change')
    ));
  return isAgreed ? { op: 'settings', anti_thrash: mode } : null;
}

async function setQuantum({ args, options }: IChoice): Promise<IAction | null> {
  const { model, trans } = options;
  const given = args['quantum'];
  const now = model.status?.settings?.quantum ?? 'auto';
  const quantum =
    typeof given === 'number' || given === 'auto'
      ? given
      : await ask<number | null>(
          options,
          trans.__('Set the time slice'),
          trans.__(
            'In seconds. Leave empty to choose it automatically, based on how long moving the memory takes.'
          ),
          now === 'auto' ? '' : String(now),
          text =>
            text === ''
              ? AUTO
              : (readNumber(text, LONGEST_QUANTUM) ??
                trans.__(
                  'Invalid time "%1". Use a number of seconds above 0, at most %2.',
                  text,
                  LONGEST_QUANTUM
                ))
        );
  return quantum === null
    ? null
    : { op: 'settings', quantum: quantum === AUTO ? 'auto' : quantum };
}

async function setHibernation({
  args,
  options
}: IChoice): Promise<IAction | null> {
  const { model, trans } = options;
  const given = args['hibernate_after'];
  const now = model.status?.settings?.hibernate_after ?? null;
  const hibernate_after =
    typeof given === 'number'
      ? given
      : await ask<number>(
          options,
          trans.__('Hibernate idle notebooks'),
          trans.__(
            'Idle time before a notebook hibernates, in minutes. Leave empty to turn hibernation off.'
          ),
          now === null ? '' : String(now / 60),
          text => {
            const minutes =
              text === '' ? 0 : readNumber(text, LONGEST_IDLENESS);
            return minutes === null
              ? trans.__(
                  'Invalid time "%1". Use a number of minutes above 0, at most %2.',
                  text,
                  LONGEST_IDLENESS
                )
              : 60 * minutes;
          }
        );
  return hibernate_after === null ? null : { op: 'settings', hibernate_after };
}

async function setPolicy({ args, options }: IChoice): Promise<IAction | null> {
  const { model, trans } = options;
  const given = args['policy'];
  const { policy: now = '', policies } = model.status?.settings ?? {};
  const policy =
    typeof given === 'string'
      ? given
      : await choose(
          options,
          trans.__('Choose the policy'),
          trans.__('This applies to all notebooks that share these GPUs.'),
          policies ?? null,
          now
        );
  return policy === null ? null : { op: 'settings', policy };
}

/** Parse a number above 0; null for other text, or for more than `most`. */
function readNumber(text: string, most: number): number | null {
  const value = Number(text.replace(',', '.'));
  return value > 0 && value <= most ? value : null;
}

/** Seconds of idleness after which notebooks hibernate if the user turns hibernation on without a time. */
const USUAL_IDLENESS = 600;

/** The longest idle time that the scheduler accepts, in minutes: 30 days. */
const LONGEST_IDLENESS = 30 * 24 * 60;

/** The text for a time slice that the scheduler chooses. */
const AUTO = 0;

function cancelText(trans: ITranslation): string {
  return trans.__('Cancel');
}

/** The buttons of a dialog that asks for a value. */
function inputLabels(
  trans: ITranslation
): Pick<InputDialog.IOptions, 'cancelLabel' | 'okLabel'> {
  return { cancelLabel: cancelText(trans), okLabel: trans.__('Set') };
}

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
      Dialog.cancelButton({ label: cancelText(trans) }),
      Dialog.warnButton({ label })
    ],
    defaultButton: 0
  });
  return answer.button.accept;
}

/** Ask for one of some names, or for any name if the list is unknown. */
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
    // JupyterLab finds the current item by its name only in lists that accept other names.
    current: items ? items.indexOf(current) : current,
    editable: items === null,
    ...inputLabels(trans)
  });
  return (answer.button.accept && answer.value?.trim()) || null;
}

/**
 * Ask for a text until it is valid.
 *
 * @param parse - Returns the value, or a sentence that explains why the text is invalid.
 * @returns Null if the user cancels.
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
      ...inputLabels(trans)
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
