// SPDX-License-Identifier: BSD-3-Clause
import { ReactWidget } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import React from 'react';

import { run } from '../actions/run';
import type { IEntry } from '../actions/table';
import { useExplanation } from '../components/explain';
import type { Mark } from '../components/shape';
import { Shape } from '../components/shape';
import { formatExactly } from '../core/format';
import { holderOf } from '../core/queue';
import type { IGroup, IStatus } from '../core/status';
import type { ITranslation } from '../core/translation';
import { CommandIds } from '../tokens';
import { nameIn } from '../words/mentions';
import { reasonText } from '../words/reasons';
import type { IWording } from '../words/short';
import { goToText, waitText } from '../words/short';
import { boundText, cellText, stateText, waitedFor } from '../words/states';
import type { IPartOptions } from './chip';

/** The content of a strip. */
export interface IStripState {
  mark: Mark | null;
  text: string;
  /** Details for the tooltip. */
  title: string;
  actions: IStripAction[];
  /** The waiting group, whose place in the queue can be explained. */
  asked?: { group: IGroup; wording: IWording };
  /** The text for screen readers; announced when it changes. */
  announcement: string;
}

export interface IStripAction extends IEntry {
  title: string;
}

/** The strip while the cell is waiting, or its memory is being restored. */
export function waitingStrip(
  group: IGroup,
  status: IStatus,
  wording: IWording,
  now: number
): IStripState {
  const { trans } = wording;
  const elapsed = now - group.at;
  const reason = reasonText(group.reason, wording, elapsed);
  if (group.state === 'restoring') {
    return {
      mark: 'restoring',
      text: group.reason ? reason : stateText(group, trans, now),
      title: '',
      actions: [],
      announcement: trans.__('This cell can use the GPU now.')
    };
  }
  const announcement = trans.__('This cell is waiting for the GPU.');
  if (group.preferences.frozen) {
    return {
      mark: 'frozen',
      text: reason,
      title: '',
      actions: [
        {
          title: trans.__('Let this notebook use the GPU again'),
          command: CommandIds.toggleFrozen,
          args: { group: group.id }
        }
      ],
      announcement
    };
  }
  if (group.state === 'waking') {
    const left = waitText(group, trans, now);
    return {
      mark: 'waiting',
      // The state already says that it is waking.
      text:
        group.reason && group.reason.code !== 'waking'
          ? trans.__('%1: %2', left, reason)
          : left,
      title: trans.__('It was hibernated and used no GPU memory.'),
      actions: [],
      announcement: trans.__(
        'This cell is waiting for its notebook to wake up.'
      )
    };
  }
  const holder = holderOf(group, status);
  const place = waitText(group, trans, now);
  const name = holder ? nameIn(wording.names, holder) : '';
  return {
    mark: 'waiting',
    text: trans.__('%1: %2', place, name || reason),
    title: [
      name ? reason : '',
      group.estimate ? boundText(group.estimate, trans, elapsed) : ''
    ]
      .filter(line => line)
      .join('\n'),
    actions: holder ? actionsOf(holder, name, wording) : [],
    asked: { group, wording },
    announcement: name
      ? trans.__('This cell is waiting for the GPU. %1 is using it.', name)
      : announcement
  };
}

function actionsOf(
  holder: IGroup,
  name: string,
  { trans }: IWording
): IStripAction[] {
  const actions: IStripAction[] = [];
  if (holder.sessions.length > 0) {
    actions.push({
      title: goToText(name, trans),
      command: CommandIds.goTo,
      args: { group: holder.id }
    });
  }
  if (holder.class === 'interactive') {
    actions.push({
      title: trans.__('Let interactive notebooks go ahead of %1', name),
      command: CommandIds.setPriority,
      args: { group: holder.id, priority: 'background' }
    });
  }
  return actions;
}

/** The strip while a cell that has waited is running. */
export function runningStrip(waited: number, { trans }: IWording): IStripState {
  return {
    mark: 'running',
    text: trans.__('waited %1, running', formatExactly(waited)),
    title: '',
    actions: [],
    announcement: trans.__('This cell is using the GPU.')
  };
}

/**
 * The strip after the cell has finished.
 *
 * @param cell - How long the cell waited and ran; `ran` is null if unknown.
 */
export function resultStrip(
  cell: { waited: number; ran: number | null },
  { trans }: IWording
): IStripState {
  const { waited, ran } = cell;
  return {
    mark: null,
    text:
      ran === null
        ? waitedFor(formatExactly(waited), trans)
        : cellText({ waited, ran }, trans),
    title: trans.__('How long this cell waited for the GPU and ran on it'),
    actions: [],
    announcement: ''
  };
}

/**
 * Announces a text when it changes, but not when the component is only rendered again.
 *
 * Most screen readers ignore the text of a region that was added together with it.
 */
function Announcement(props: {
  text: string;
  announced: { current: string };
}): JSX.Element {
  const { text, announced } = props;
  const [shown, show] = React.useState(announced.current);
  React.useEffect(() => {
    announced.current = text;
    show(text);
  }, [announced, text]);
  return (
    <span className="jp-GpuShare-announcement" role="status">
      {shown}
    </span>
  );
}

function Action(props: {
  action: IStripAction;
  commands: CommandRegistry;
}): JSX.Element {
  const { command, args, title } = props.action;
  const button = React.useRef<HTMLButtonElement>(null);
  React.useLayoutEffect(() => {
    const node = button.current;
    const strip = node?.closest<HTMLElement>('.jp-GpuShare-strip');
    return () => {
      // The button is removed after its action. Keyboard users should not lose their place.
      if (node === document.activeElement) {
        strip?.focus({ preventScroll: true });
      }
    };
  }, []);
  return (
    <button
      ref={button}
      type="button"
      title={title}
      onClick={() => run(props.commands, props.action)}
    >
      {props.commands.label(command, { ...args, isShort: true })}
    </button>
  );
}

function Strip(props: {
  state: IStripState;
  model: IPartOptions['model'];
  commands: CommandRegistry;
  announced: { current: string };
}): JSX.Element {
  const { mark, text, title, actions, asked, announcement } = props.state;
  const { commands } = props;
  const [explanation, pointing] = useExplanation(
    props.model,
    asked?.group ?? null,
    asked?.wording ?? null
  );
  return (
    <>
      <span
        className="jp-GpuShare-stripText"
        title={[text, title, explanation].filter(line => line).join('\n')}
        data-explanation={explanation || undefined}
        tabIndex={asked ? 0 : undefined}
        {...pointing}
      >
        {mark && <Shape mark={mark} />}
        {text}
      </span>
      {actions
        .filter(
          ({ command, args }) =>
            commands.hasCommand(command) && commands.isEnabled(command, args)
        )
        .map(action => (
          <Action key={action.command} action={action} commands={commands} />
        ))}
      <Announcement text={announcement} announced={props.announced} />
    </>
  );
}

/**
 * A line below a cell that shows how long the cell is waiting, or has waited, for the GPU.
 *
 * It is only part of the widget. The cell's model, which is saved in the file, does not contain it.
 */
export class StripWidget extends ReactWidget {
  constructor(
    { model, commands, trans }: IPartOptions & { trans: ITranslation },
    state: IStripState
  ) {
    super();
    this._model = model;
    this._commands = commands;
    this._state = state;
    this.addClass('jp-GpuShare-strip');
    this.node.tabIndex = -1;
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', trans.__('GPU'));
    // Enter and Space are for the buttons here, not for the notebook.
    this.node.dataset['lmSuppressShortcuts'] = 'true';
  }

  get state(): IStripState {
    return this._state;
  }
  set state(state: IStripState) {
    this._state = state;
    this.update();
  }

  protected render(): JSX.Element {
    return (
      <Strip
        state={this._state}
        model={this._model}
        commands={this._commands}
        announced={this._announced}
      />
    );
  }

  private _commands: CommandRegistry;
  private _model: IPartOptions['model'];
  private _announced = { current: '' };
  private _state: IStripState;
}
