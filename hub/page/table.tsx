// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

interface ITableProps {
  caption: string;
  className?: string;
  columns: Record<string, string>;
  /** The columns with numbers. */
  numbers: ReadonlySet<string>;
  children: React.ReactNode;
}

/** A table. On narrow screens its rows become cards, for which browsers drop the table roles, so the roles are explicit. */
export function Table(props: ITableProps): JSX.Element {
  const { caption, className, columns, numbers, children } = props;
  return (
    <table className={className} role="table">
      <caption>{caption}</caption>
      <thead role="rowgroup">
        <tr role="row">
          {Object.entries(columns).map(([name, text]) => (
            <th
              key={name}
              scope="col"
              role="columnheader"
              className={`${numbers.has(name) ? 'number ' : ''}column-${name}`}
            >
              <span>{text}</span>
            </th>
          ))}
        </tr>
      </thead>
      <tbody role="rowgroup">{children}</tbody>
    </table>
  );
}

interface INotedProps {
  className: string;
  label?: string;
  text: string;
  remark?: string;
  title?: string;
}

/** A cell with a text and a remark below it. */
export function Noted(props: INotedProps): JSX.Element {
  const { className, label, text, remark = '', title = '' } = props;
  return (
    <td
      role="cell"
      className={className}
      data-label={label}
      data-empty={text || remark ? undefined : ''}
      title={title || undefined}
    >
      <span>{text}</span>
      <small hidden={!remark}>{remark}</small>
    </td>
  );
}
