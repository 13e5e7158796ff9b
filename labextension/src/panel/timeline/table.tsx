// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import { Name } from '../../components/name';
import { formatBytes, formatExactly } from '../../core/format';
import type { ISpan } from '../../core/status';
import { wordName } from '../../words/mentions';
import type { IWording } from '../../words/short';
import { kindText, soFarText } from '../../words/states';
import type { Clock } from '../clock';
import type { ILane } from './lanes';

/** The most rows of the table. */
const ROWS = 200;

/** Format the time of day at which an event started. */
function timeText(start: number, now: number): string {
  return new Date(Date.now() - (now - start) * 1000).toLocaleTimeString([], {
    hourCycle: 'h23'
  });
}

interface ITableProps {
  lanes: readonly ILane[];
  wording: IWording;
  clock: Clock;
}

/** The timeline as a table, which is rendered only while it is open. */
export function Table({ lanes, wording, clock }: ITableProps): JSX.Element {
  const { trans } = wording;
  const [open, setOpen] = React.useState(false);
  return (
    <details
      className="jp-GpuShare-table"
      onToggle={event => setOpen(event.currentTarget.open)}
    >
      <summary>{trans.__('Show as a table')}</summary>
      {open && <Rows lanes={lanes} wording={wording} clock={clock} />}
    </details>
  );
}

function Rows({ lanes, wording, clock }: ITableProps): JSX.Element {
  const { trans, units } = wording;
  const { now } = clock;
  const spans: { name: string; span: ISpan }[] = lanes
    .flatMap(({ name, spans }) => spans.map(span => ({ name, span })))
    .sort((a, b) => b.span.start - a.span.start);
  return (
    <div
      className="jp-GpuShare-scroll"
      role="region"
      tabIndex={0}
      aria-label={trans.__('Events, newest first')}
    >
      <table>
        <thead>
          <tr>
            <th scope="col">{trans.__('Notebook')}</th>
            <th scope="col">{trans.__('Event')}</th>
            <th scope="col">{trans.__('Started')}</th>
            <th scope="col">{trans.__('Duration')}</th>
            <th scope="col">{trans.__('Size')}</th>
          </tr>
        </thead>
        <tbody>
          {spans.slice(0, ROWS).map(({ name, span }) => (
            <tr key={span.id}>
              <td title={name}>
                <Name text={wordName(name)} end={6} />
              </td>
              <td>{kindText(span.kind, trans)}</td>
              <td>{timeText(span.start, now)}</td>
              <td>
                {span.end === null
                  ? soFarText(now - span.start, trans)
                  : formatExactly(span.end - span.start)}
              </td>
              <td>{span.bytes > 0 ? formatBytes(span.bytes, units) : ''}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {spans.length > ROWS && (
        <p className="jp-GpuShare-quiet">
          {trans.__('Showing the newest %1 of %2 events.', ROWS, spans.length)}
        </p>
      )}
    </div>
  );
}
