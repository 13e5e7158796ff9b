// SPDX-License-Identifier: BSD-3-Clause
import type { CommandRegistry } from '@lumino/commands';
import React from 'react';

import { isPossible, run } from '../actions/run';
import { canExplain, useExplanation } from '../components/explain';
import { Name } from '../components/name';
import { formatBytes } from '../core/format';
import { turnPercent } from '../core/queue';
import type { IGroup, ISettings } from '../core/status';
import { isWaiting, memoryOf } from '../core/status';
import type { IGpuShareModel } from '../tokens';
import { CommandIds } from '../tokens';
import { thisNotebook } from '../words/availability';
import { detailText } from '../words/details';
import { printable } from '../words/names';
import { whyText } from '../words/reasons';
import type { IWording } from '../words/short';
import {
  prefetchText,
  sleepTitle,
  waitTitle,
  whereText
} from '../words/states';
import { Actions } from './actions';
import { Badges } from './badges';
import type { Clock } from './clock';
import { useClock } from './clock';

/** The common properties of all rows; the same object until one of them changes. */
export interface IRowContext {
  wording: IWording;
  model: Pick<IGpuShareModel, 'explain'>;
  commands: CommandRegistry;
  clock: Clock;
  settings: ISettings | null;
  /** The numbers of the GPUs by their uuids; null for a single GPU. */
  gpus: ReadonlyMap<string, number> | null;
  /** Whether the user may act. The commands check this too, but the rows must be rendered again when it changes. */
  mayAdjust: boolean;
}

interface IRowProps {
  group: IGroup;
  name: string;
  colour: number;
  /** Whether its low priority makes a difference now. */
  background: boolean;
  context: IRowContext;
}

/** A text that changes with time. */
export function Counting(props: {
  clock: Clock;
  text: (now: number) => string;
}): JSX.Element {
  return <>{useClock(props.clock, props.text)}</>;
}

/** One group: its name, state, memory and actions. */
function GroupRow(props: IRowProps): JSX.Element {
  const { group, name, colour, background, context } = props;
  const { wording, commands } = context;
  const { trans } = wording;
  const { total } = memoryOf(group);
  const open = { command: CommandIds.goTo, args: { group: group.id } };
  const canOpen = isPossible(commands, open);
  const paths = group.sessions
    .map(session => printable(session.path))
    .join('\n');
  return (
    <li
      className="jp-GpuShare-row"
      data-group={group.id}
      data-state={group.state}
    >
      <Swatch group={group} colour={colour} wording={wording} />
      <div className="jp-GpuShare-name">
        <span
          title={paths || name}
          data-link={canOpen || undefined}
          onClick={canOpen ? () => run(commands, open) : undefined}
        >
          <Name text={name} end={5} />
        </span>
      </div>
      <div
        className="jp-GpuShare-figure"
        title={trans.__(
          'Memory of this notebook: %1',
          whereText(group, wording)
        )}
      >
        {total > 0 && formatBytes(total, wording.units)}
      </div>
      <div className="jp-GpuShare-detail">
        <Reason
          group={group}
          context={context}
          text={now => detailText(group, wording, now, context.gpus)}
        />
        <Badges
          group={group}
          background={background}
          preferences={group.preferences}
          wording={wording}
        />
      </div>
      {group.state === 'running' && group.yields_in !== null && (
        <Turn group={group} name={name} context={context} />
      )}
      <Actions
        group={group}
        name={name}
        canOpen={canOpen}
        commands={commands}
        wording={wording}
      />
    </li>
  );
}

/** Rendered again only when the group or the common properties change. */
export const Row = React.memo(GroupRow);

interface IOwnRowProps {
  group: IGroup;
  name: string;
  colour: number;
  wording: IWording;
}

/** The row of the active notebook, which only shows its place; the card shows everything else. */
export function OwnRow(props: IOwnRowProps): JSX.Element {
  const { group, name, colour, wording } = props;
  return (
    <li className="jp-GpuShare-row" aria-current="true">
      <Swatch group={group} colour={colour} wording={wording} />
      <div className="jp-GpuShare-name">
        <span title={name}>
          <Name text={name} end={5} />
        </span>
      </div>
      <span className="jp-GpuShare-current">{thisNotebook(wording.trans)}</span>
    </li>
  );
}

interface ISwatchProps {
  group: IGroup;
  colour: number;
  wording: IWording;
}

/** The colour of a notebook in bars and in the timeline, with its position if it has one. */
export function Swatch(props: ISwatchProps): JSX.Element {
  const { group, colour, wording } = props;
  const { trans } = wording;
  return !isWaiting(group) || group.position === null ? (
    <span
      className="jp-GpuShare-swatch"
      data-colour={colour}
      data-hollow={group.state === 'hibernated' || undefined}
    />
  ) : (
    <span
      className="jp-GpuShare-position"
      data-colour={colour}
      role="img"
      aria-label={trans.__('position %1', group.position)}
    >
      {group.position}
    </span>
  );
}

interface IGroupProps {
  group: IGroup;
  context: IRowContext;
}

interface IReasonProps extends IGroupProps {
  /** Returns the text, which can depend on the time. */
  text: (now: number) => string;
}

/** The state of a group or the reason for its wait. The tooltip explains which rule puts other notebooks ahead. */
export function Reason(props: IReasonProps): JSX.Element {
  const { group, context } = props;
  const { model, clock, wording } = context;
  const [explanation, pointing] = useExplanation(model, group, wording);
  const text = <Counting clock={clock} text={props.text} />;
  // The row shows only one time, so the tooltip has the others.
  const full = isWaiting(group)
    ? [
        waitTitle(group, wording.trans, clock.now),
        whyText(group, wording, clock.now - group.at)
      ]
    : [];
  return canExplain(group) ? (
    <span
      className="jp-GpuShare-reason"
      tabIndex={0}
      title={[...full, explanation].filter(Boolean).join('\n') || undefined}
      data-explanation={explanation || undefined}
      {...pointing}
    >
      {text}
    </span>
  ) : (
    <span
      title={
        group.prefetch
          ? prefetchText(group.prefetch, wording.trans)
          : group.state === 'hibernated'
            ? sleepTitle(group, wording.trans)
            : undefined
      }
    >
      {text}
    </span>
  );
}

/** The used part of a group's time slice. */
export function Turn(props: IGroupProps & { name: string }): JSX.Element {
  const { group, name, context } = props;
  const { trans } = context.wording;
  const percent = useClock(
    context.clock,
    now => turnPercent(group, context.settings, now) ?? 0
  );
  return (
    <div
      className="jp-GpuShare-turn"
      role="progressbar"
      aria-label={trans.__('Turn of %1', name)}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={percent}
    >
      <div style={{ width: `${percent}%` }} />
    </div>
  );
}
