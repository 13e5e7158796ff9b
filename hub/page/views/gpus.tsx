// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import { formatDuration } from '../../../labextension/src/core/format';
import { isRunning } from '../../../labextension/src/core/status';
import { isolate } from '../../../labextension/src/words/mentions';
import { busyText } from '../../../labextension/src/words/panel';
import type { Question } from '../dialogs';
import { english } from '../english';
import type {
  IGpu,
  IHead,
  IHost,
  INode,
  INotebook,
  IReport,
  Kind
} from '../messages';
import { reportsOf } from '../messages';
import type { Service } from '../service';
import type { IState } from '../store';
import { SAMPLES } from '../store';
import { Noted, Table } from '../table';
import {
  awayText,
  nameOf,
  sharedText,
  size,
  someTime,
  TEXT,
  timeOf
} from '../text';

/** The state, and functions to open dialogs and to act. */
export interface IContext {
  state: IState;
  service: Service;
  ask: (question: Question) => void;
}

interface IGpusProps extends IContext {
  filter: string;
  setFilter: (filter: string) => void;
}

/** The nodes with their GPUs and notebooks. */
export function Gpus(props: IGpusProps): JSX.Element {
  const { state, filter, setFilter } = props;
  const all = [...state.nodes.values()];
  const reports = reportsOf(all);
  const notebooks = reports.flatMap(node => node.notebooks);
  const wanted = filter.trim().toLowerCase();
  const shown = all.filter(
    node =>
      !wanted ||
      node.away ||
      (node.known &&
        node.notebooks.some(notebook => matches(notebook, node, wanted)))
  );
  return (
    <div>
      <div className="bar">
        <p className="quiet">
          {TEXT.summary(
            all.length,
            all.filter(node => node.away).length,
            reports.flatMap(node => node.gpus).length,
            notebooks.length,
            notebooks.filter(({ state }) => state === 'waiting').length
          )}
        </p>
        <input
          type="search"
          placeholder={TEXT.filter}
          aria-label={TEXT.filter}
          hidden={notebooks.length < 2}
          value={filter}
          onChange={event => setFilter(event.target.value)}
        />
      </div>
      <div>
        {shown.map(node => (
          <Node key={node.name} {...props} node={node} wanted={wanted} />
        ))}
      </div>
      {all.length === 0 && <p className="empty">{TEXT.noNodes}</p>}
    </div>
  );
}

/** Whether the name of a notebook, its user or its node contains a text. */
function matches(notebook: INotebook, node: IHead, wanted: string): boolean {
  return [notebook.name, notebook.user, node.name].some(text =>
    text.toLowerCase().includes(wanted)
  );
}

function Node(props: IContext & { node: INode; wanted: string }): JSX.Element {
  const { node, state, ask } = props;
  return (
    <section
      className="node"
      aria-label={node.name}
      data-away={node.away ? '' : undefined}
    >
      <header>
        <h2>{node.name}</h2>
        <span className="quiet">{node.known ? TEXT.facts(node) : ''}</span>
        {node.known && state.viewer.may_act && !node.away && (
          <button
            type="button"
            className="plain"
            onClick={() => ask({ kind: 'message', node })}
          >
            {TEXT.maintenance}
          </button>
        )}
      </header>
      {node.known && node.maintenance && (
        <p className="notice">{TEXT.message(node.maintenance)}</p>
      )}
      {node.away && (
        <p className="notice" title={node.detail || undefined}>
          {node.known
            ? TEXT.unreachable(timeOf(node.since), node.error)
            : TEXT.neverReached(node.error)}
        </p>
      )}
      {node.known && <Report {...props} node={node} />}
    </section>
  );
}

function Report(
  props: IContext & { node: IHead & IReport; wanted: string }
): JSX.Element {
  const { node, wanted } = props;
  const shown = node.notebooks.filter(notebook =>
    matches(notebook, node, wanted)
  );
  const why =
    node.gpus.length === 0
      ? TEXT.noGpus
      : node.notebooks.length > 0
        ? TEXT.noMatch
        : TEXT.noNotebooks;
  return (
    <>
      <div className="gpus">
        {node.gpus.map(gpu => (
          <Gpu key={gpu.uuid} {...props} gpu={gpu} />
        ))}
        {node.host && <Host host={node.host} />}
      </div>
      <ul className="processes">
        {node.processes.map(text => (
          <li key={text}>{text}</li>
        ))}
      </ul>
      <div className="notebooks">
        {shown.length > 0 ? (
          <Table
            caption={TEXT.notebooks(node.name)}
            className="fixed"
            columns={TEXT.columns}
            numbers={NUMBERS}
          >
            {shown.map(notebook => (
              <Notebook key={notebook.id} {...props} notebook={notebook} />
            ))}
          </Table>
        ) : (
          <p className="empty">{why}</p>
        )}
      </div>
    </>
  );
}

const NUMBERS = new Set(['gpus', 'memory', 'ran', 'waited']);

function Gpu(
  props: IContext & { node: IHead & IReport; gpu: IGpu }
): JSX.Element {
  const { state, service, ask, node, gpu } = props;
  const kinds = (Object.entries(gpu.memory) as [Kind, number][]).filter(
    ([, bytes]) => bytes > 0
  );
  const isInUse = node.notebooks.some(
    notebook => isRunning(notebook) && notebook.gpus.includes(gpu.index)
  );
  const drain = (): void => {
    if (gpu.draining) {
      const body = { gpu: gpu.uuid, on: false };
      void service.act(
        node.name,
        'drain',
        body,
        TEXT.undrained(gpu, node.name)
      );
    } else {
      ask({ kind: 'drain', gpu, node });
    }
  };
  return (
    <section className="gpu">
      <header>
        <h3 title={gpu.uuid}>{TEXT.gpu(gpu)}</h3>
        {gpu.draining && <span className="badge">{TEXT.draining}</span>}
        {state.viewer.may_act && (
          <button type="button" className="plain" onClick={drain}>
            {gpu.draining ? TEXT.undrain : TEXT.drain}
          </button>
        )}
      </header>
      <MemoryBar
        kinds={kinds.filter(([kind]) => kind !== 'free')}
        total={gpu.total}
      />
      <div className="figures">
        <span>{TEXT.used(gpu.used, gpu.total)}</span>
        <span className="busy" title={TEXT.busyTitle}>
          <Curve values={state.samples.get(gpu.uuid) ?? []} />
          <span>{busyText(gpu.utilization, isInUse, english)}</span>
        </span>
        <span hidden={gpu.power === null}>{TEXT.power(gpu.power)}</span>
      </div>
      <ul className="legend">
        {kinds.map(([kind, bytes]) => (
          <li key={kind} data-kind={kind === 'free' ? undefined : kind}>
            {`${TEXT.kinds[kind]} ${size(bytes)}`}
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The host memory with evicted data. */
function Host({ host }: { host: IHost }): JSX.Element {
  return (
    <section className="gpu">
      <header>
        <h3>{TEXT.hostTitle}</h3>
      </header>
      <MemoryBar
        className="host"
        kinds={[['swapped', host.swapped]]}
        total={host.budget}
      />
      <div className="figures">
        <span>{TEXT.used(host.swapped, host.budget)}</span>
        <span hidden={!host.shared}>{TEXT.saved(host.shared ?? 0)}</span>
        <span hidden={!host.disk}>{TEXT.disk(host.disk ?? 0)}</span>
      </div>
    </section>
  );
}

interface IMemoryBarProps {
  className?: string;
  kinds: readonly [Kind, number][];
  total: number;
}

function MemoryBar(props: IMemoryBarProps): JSX.Element {
  const { className = '', kinds, total } = props;
  return (
    <div className={`memory ${className}`} aria-hidden="true">
      {kinds
        .filter(([, bytes]) => bytes > 0)
        .map(([kind, bytes]) => (
          <span
            key={kind}
            data-kind={kind}
            style={{ width: `${(100 * bytes) / Math.max(total, 1)}%` }}
          />
        ))}
    </div>
  );
}

/** The utilisation of a GPU over time, in percent. */
function Curve({ values }: { values: readonly number[] }): JSX.Element {
  const step = 72 / (SAMPLES - 1);
  const first = SAMPLES - values.length;
  const points = values.map((value, index) => {
    const y = 15 - (14 * value) / 100;
    return `${((first + index) * step).toFixed(1)},${y.toFixed(1)}`;
  });
  return (
    <svg width={72} height={16} aria-hidden="true">
      <polyline points={points.join(' ')} />
    </svg>
  );
}

function Notebook(
  props: IContext & { node: IHead & IReport; notebook: INotebook }
): JSX.Element {
  const { state, ask, node, notebook } = props;
  const name = nameOf(notebook.name);
  const user = notebook.user || TEXT.someone;
  // Notebooks of other users have no other name.
  const isNameless = user === notebook.name;
  const { resident, unevictable, swapped, disk } = notebook.memory;
  const here = resident + unevictable;
  // While it waits, the reason already mentions the hold.
  const isOnHold = notebook.on_hold && notebook.state !== 'waiting';
  const { columns } = TEXT;
  return (
    <tr
      role="row"
      data-hidden={isNameless ? '' : undefined}
      data-mine={notebook.mine ? '' : undefined}
    >
      <td role="cell" className="">
        <div className="name" title={notebook.name}>
          {name}
        </div>
        <small hidden={isNameless}>
          {notebook.mine ? TEXT.you(isolate(user)) : isolate(user)}
        </small>
      </td>
      <td role="cell" className="">
        <span className="state" data-state={notebook.state}>
          {TEXT.state(notebook)}
        </span>
        <small>
          {notebook.since === null
            ? ''
            : formatDuration(node.now - notebook.since)}
        </small>
      </td>
      <Noted
        className="why"
        text={notebook.why}
        remark={[isOnHold ? TEXT.onHold : '', notebook.preferences]
          .filter(Boolean)
          .join(', ')}
      />
      <Noted
        className="number"
        label={columns.gpus}
        text={notebook.gpus.filter(index => index !== null).join(', ')}
      />
      <Noted
        className="number"
        label={columns.memory}
        text={here ? size(here) : swapped || disk ? '' : TEXT.noMemory}
        remark={awayText(notebook.memory)}
        title={sharedText(notebook.memory)}
      />
      <Noted
        className="number"
        label={columns.ran}
        text={someTime(notebook.ran)}
      />
      <Noted
        className="number"
        label={columns.waited}
        text={someTime(notebook.waited)}
        remark={notebook.waits > 1 ? TEXT.times(notebook.waits) : ''}
      />
      <td role="cell" className="act">
        {state.viewer.may_act && (
          <button
            type="button"
            aria-label={TEXT.act.open(name)}
            onClick={() => ask({ kind: 'act', notebook, node })}
          >
            ⋯
          </button>
        )}
      </td>
    </tr>
  );
}
