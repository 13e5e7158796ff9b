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
  classText,
  sleepTitle,
  waitTitle,
  whereText,
  wishesText
} from '../words/states';
import { Actions } from './actions';
import type { Clock } from './clock';
import { useClock } from './clock';

/** What the rows have in common; the same object until something of it changes. */
export interface IRowContext {
  wording: IWording;
  model: Pick<IGpuShareModel, 'explain'>;
  commands: CommandRegistry;
  clock: Clock;
  settings: ISettings | null;
  /** The numbers of the GPUs by their uuids, where there are several. */
  gpus: ReadonlyMap<string, number> | null;
  /** Whether the viewer may act; the commands ask too, but nobody tells us when that changes. */
  mayAdjust: boolean;
}

interface IRowProps {
  group: IGroup;
  name: string;
  colour: number;
  /** Whether it is the notebook in front. */
  current: boolean;
  /** Whether it makes a difference that it is in the background. */
  background: boolean;
  context: IRowContext;
}

/** A text that counts. */
function Counting(props: {
  clock: Clock;
  text: (now: number) => string;
}): JSX.Element {
  return <>{useClock(props.clock, props.text)}</>;
}

/** One group: who, what it does, how much it has, and what one can do about it. */
function GroupRow(props: IRowProps): JSX.Element {
  const { group, name, colour, current, background, context } = props;
  const { wording, commands } = context;
  const { trans } = wording;
  const waiting = isWaiting(group);
  const open = { command: CommandIds.goTo, args: { group: group.id } };
  const canOpen = isPossible(commands, open);
  const paths = group.sessions
    .map(session => printable(session.path))
    .join('\n');
  return (
    <li
      className="jp-GpuShare-row"
      aria-current={current ? 'true' : undefined}
      data-group={group.id}
      data-state={group.state}
    >
      {waiting ? (
        <Position colour={colour} position={group.position} wording={wording} />
      ) : (
        <span
          className="jp-GpuShare-swatch"
          data-colour={colour}
          data-hollow={group.state === 'hibernated' || undefined}
        />
      )}
      <div className="jp-GpuShare-name">
        <span
          title={paths || name}
          data-link={canOpen || undefined}
          onClick={canOpen ? () => run(commands, open) : undefined}
        >
          <Name text={name} end={5} />
        </span>
        {current && (
          <span className="jp-GpuShare-current">{thisNotebook(trans)}</span>
        )}
      </div>
      <div
        className="jp-GpuShare-figure"
        title={trans.__(
          'Memory of this notebook: %1',
          whereText(group, wording)
        )}
      >
        {formatBytes(memoryOf(group).total, wording.units)}
      </div>
      <div className="jp-GpuShare-detail">
        <Detail group={group} context={context} />
        <Sleep group={group} wording={wording} />
        <Wishes group={group} background={background} wording={wording} />
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

/** Drawn again only when something of the group, or of what all rows share, changed. */
export const Row = React.memo(GroupRow);

interface IPositionProps {
  colour: number;
  position: number | null;
  wording: IWording;
}

function Position(props: IPositionProps): JSX.Element {
  const { colour, position, wording } = props;
  const { trans } = wording;
  return position === null ? (
    <span className="jp-GpuShare-swatch" data-colour={colour} />
  ) : (
    <span
      className="jp-GpuShare-position"
      data-colour={colour}
      role="img"
      aria-label={trans.__('position %1', position)}
    >
      {position}
    </span>
  );
}

interface IGroupProps {
  group: IGroup;
  context: IRowContext;
}

/** What it does or waits for, and by which rule, for who points at it. */
function Detail({ group, context }: IGroupProps): JSX.Element {
  const { model, clock, wording, gpus } = context;
  const [explanation, pointing] = useExplanation(model, group, wording);
  const text = (
    <Counting
      clock={clock}
      text={now => detailText(group, wording, now, gpus)}
    />
  );
  // A row has one time; its tooltip has the others.
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
    text
  );
}

/** Whether it is hibernated, or on the way there or back; and why it is not, if somebody tried. */
function Sleep({ group, wording }: ISleepProps): JSX.Element | null {
  const { trans } = wording;
  const title = sleepTitle(group, trans);
  const hibernating = trans.__('Hibernating…');
  const text = {
    ordered: trans.__('hibernates when idle'),
    parking: hibernating,
    hibernating,
    hibernated: trans.__('Hibernated'),
    waking: trans.__('Waking…'),
    // What is wrong with it is told to who points at it.
    refused: title && trans.__('not hibernated')
  }[group.hibernation?.state ?? 'refused'];
  if (!group.hibernation || !text) {
    return null;
  }
  const explains = ['refused', 'ordered'].includes(group.hibernation.state);
  return (
    <>
      {' '}
      <span
        className="jp-GpuShare-wish jp-GpuShare-sleep"
        title={title || undefined}
        tabIndex={explains ? 0 : undefined}
        data-explanation={explains ? title : undefined}
      >
        {text}
      </span>
    </>
  );
}

interface ISleepProps {
  group: IGroup;
  wording: IWording;
}

/** What people asked for it, and its class where that makes a difference. */
function Wishes(props: ISleepProps & { background: boolean }): JSX.Element {
  const { group, background, wording } = props;
  const { trans } = wording;
  return (
    <>
      {background && (
        <>
          {' '}
          <span
            className="jp-GpuShare-wish"
            title={classText(group, trans) ?? undefined}
          >
            {trans.__('low priority')}
          </span>
        </>
      )}
      {wishesText(group.wishes, wording).map(text => (
        <React.Fragment key={text}>
          {' '}
          <span className="jp-GpuShare-wish">{text}</span>
        </React.Fragment>
      ))}
    </>
  );
}

/** How much of its turn is over. */
function Turn(props: IGroupProps & { name: string }): JSX.Element {
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
