// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import { isPossible, run } from '../actions/run';
import { Name } from '../components/name';
import { markOf, Shape } from '../components/shape';
import { holderOf } from '../core/queue';
import type { IGroup, IStatus, IUnshared } from '../core/status';
import { showsBackground } from '../core/status';
import type { ITranslation } from '../core/translation';
import { thisNotebook, unsharedText } from '../words/availability';
import { cardMemory, cardQueue, cardReason, cardState } from '../words/card';
import { printable } from '../words/names';
import { actionsText } from '../words/panel';
import { MoreButton } from './actions';
import { Badges } from './badges';
import { choicesOf, RESTART } from './choices';
import type { IRowContext } from './row';
import { Counting, Reason, Turn } from './row';

interface ICardProps {
  group: IGroup;
  name: string;
  colour: number;
  status: IStatus;
  context: IRowContext;
}

/** The active notebook: its state and the reason, its memory on the GPU, and the most useful actions. */
export function Card(props: ICardProps): JSX.Element {
  const { group, name, colour, status, context } = props;
  const { wording, commands, clock } = context;
  const { trans } = wording;
  const reason = cardReason(group, wording, clock.now);
  const queue = cardQueue(group, trans);
  const holder = holderOf(group, status);
  return (
    <section
      className="jp-GpuShare-card"
      aria-label={thisNotebook(trans)}
      data-group={group.id}
      data-mark={markOf(group)}
    >
      <div className="jp-GpuShare-cardHead">
        <span className="jp-GpuShare-swatch" data-colour={colour} />
        <h3
          title={
            group.sessions.map(({ path }) => printable(path)).join('\n') || name
          }
        >
          <Name text={name} end={5} />
        </h3>
        <MoreButton
          className="jp-GpuShare-icon"
          group={group.id}
          commands={commands}
          trans={trans}
        />
      </div>
      <p className="jp-GpuShare-cardState">
        <Shape mark={markOf(group)} />
        <span>
          <Counting clock={clock} text={now => cardState(group, trans, now)} />
        </span>
      </p>
      {group.state === 'running' && group.yields_in !== null && (
        <Turn group={group} name={name} context={context} />
      )}
      {reason && (
        <p>
          <Reason
            group={group}
            context={context}
            text={now => cardReason(group, wording, now)}
          />
        </p>
      )}
      {queue && <p>{queue}</p>}
      <p className="jp-GpuShare-cardMemory">
        {cardMemory(group, wording, context.gpus)}
        <Badges
          group={group}
          background={showsBackground(group, status.groups)}
          preferences={{ ...group.preferences, frozen: false, on_hold: false }}
          wording={wording}
        />
      </p>
      <div
        className="jp-GpuShare-cardActions"
        role="group"
        aria-label={actionsText(name, trans)}
      >
        {choicesOf(group, holder, commands).map(entry => (
          <button
            key={entry.command}
            type="button"
            title={commands.caption(entry.command, entry.args)}
            onClick={() => run(commands, entry)}
          >
            {commands.label(entry.command, { ...entry.args, isShort: true })}
          </button>
        ))}
      </div>
    </section>
  );
}

/** The active notebook has not used the GPU. */
export function UnusedCard({ trans }: { trans: ITranslation }): JSX.Element {
  return (
    <section
      className="jp-GpuShare-card"
      aria-label={thisNotebook(trans)}
      data-mark="idle"
    >
      <p>{trans.__('This notebook has not used the GPU yet.')}</p>
    </section>
  );
}

interface IUnsharedCardProps {
  kernel: IUnshared;
  context: IRowContext;
}

/** Why the active notebook does not share the GPU, and what to do about it. */
export function UnsharedCard(props: IUnsharedCardProps): JSX.Element {
  const { kernel, context } = props;
  const { wording, commands } = context;
  const { trans } = wording;
  const { title, text } = unsharedText(thisNotebook(trans), kernel, trans);
  const restart = { command: RESTART };
  return (
    <section
      className="jp-GpuShare-card"
      aria-label={thisNotebook(trans)}
      data-mark="unshared"
    >
      <p className="jp-GpuShare-cardState">
        <Shape mark="unshared" />
        <span>{title}</span>
      </p>
      <p>{text}</p>
      {isPossible(commands, restart) && (
        <div className="jp-GpuShare-cardActions">
          <button type="button" onClick={() => run(commands, restart)}>
            {commands.label(RESTART)}
          </button>
        </div>
      )}
    </section>
  );
}
