// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import { isolate } from '../../../labextension/src/words/mentions';
import type { IEntry } from '../messages';
import { reportsOf } from '../messages';
import type { IState } from '../store';
import { nameOf, TEXT, timeOf } from '../text';

/** The events and, for viewers who may see it, the audit log. */
export function History({ state }: { state: IState }): JSX.Element {
  return (
    <div className="columns">
      {state.viewer.sees_all && (
        <Log
          title={TEXT.actions}
          lines={linesOf(
            state,
            'actions',
            ({ user = '', text }) => `${isolate(user)} ${text}`
          )}
        />
      )}
      <Log
        title={TEXT.events}
        lines={linesOf(state, 'events', ({ name = '', text }) =>
          [nameOf(name), text].filter(Boolean).join(' ')
        )}
      />
    </div>
  );
}

interface ILine {
  key: string;
  time: number;
  text: string;
}

/** The entries of all nodes, newest first, with the name of the node if there are several. */
function linesOf(
  { nodes }: IState,
  member: 'actions' | 'events',
  word: (entry: IEntry) => string
): ILine[] {
  return reportsOf(nodes.values())
    .flatMap(node =>
      node[member].map((entry, index) => ({
        time: entry.time,
        key: `${node.name} ${entry.key ?? index}`,
        text: (nodes.size > 1 ? `${node.name}: ` : '') + word(entry)
      }))
    )
    .sort((a, b) => b.time - a.time);
}

function Log(props: { title: string; lines: readonly ILine[] }): JSX.Element {
  const { title, lines } = props;
  return (
    <section className="panel">
      <h2>{title}</h2>
      {lines.length > 0 ? (
        // The list scrolls and has no focusable content, so it has to be focusable itself.
        <ol className="log" tabIndex={0} aria-label={title}>
          {lines.map(({ key, time, text }) => (
            <li key={key}>
              <time>{timeOf(time)}</time>
              <span>{text}</span>
            </li>
          ))}
        </ol>
      ) : (
        <p className="empty">{TEXT.nothing}</p>
      )}
    </section>
  );
}
