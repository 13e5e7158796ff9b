// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import { Name } from '../components/name';
import { formatBytes } from '../core/format';
import { firstRows } from '../core/sections';
import type { IGroupShare } from '../core/shares';
import { isResidue } from '../core/shares';
import type { IGroup, IStatus, IUnshared } from '../core/status';
import { showsBackground } from '../core/status';
import type { ITranslation } from '../core/translation';
import { unsharedText } from '../words/availability';
import { shortName } from '../words/mentions';
import { listNames, printable, shortestNames } from '../words/names';
import type { IWording } from '../words/short';
import type { IRowContext } from './row';
import { OwnRow, Row } from './row';

/** Number of rows of a collapsed section. */
const ROWS = 8;

export const NO_SHARES: readonly IGroupShare[] = [];

interface IListProps<T> {
  id: string;
  label: string;
  items: readonly T[];
  /** The items of the collapsed section. */
  few: readonly T[];
  draw: (item: T) => JSX.Element;
  trans: ITranslation;
}

/** A section that shows only some rows at first. It is left out if it has none. */
function List<T>(props: IListProps<T>): JSX.Element | null {
  const { id, label, items, few, draw, trans } = props;
  const [all, setAll] = React.useState(false);
  if (items.length === 0) {
    return null;
  }
  const heading = `jp-GpuShare-${id}`;
  return (
    <section className="jp-GpuShare-section" aria-labelledby={heading}>
      <h3 id={heading}>
        {label} <small>{items.length}</small>
      </h3>
      <ul role="list" id={`${heading}-list`}>
        {(all ? items : few).map(draw)}
      </ul>
      {few.length < items.length && (
        <button
          type="button"
          className="jp-GpuShare-more"
          aria-expanded={all}
          aria-controls={`${heading}-list`}
          onClick={() => setAll(!all)}
        >
          {all ? trans.__('Show fewer') : trans.__('Show all %1', items.length)}
        </button>
      )}
    </section>
  );
}

interface ISectionProps {
  id: string;
  label: string;
  groups: IGroup[];
  context: IRowContext;
  /** The groups of all sections. */
  all: readonly IGroup[];
  colours: ReadonlyMap<string, number>;
  current: string | null;
}

export function Section(props: ISectionProps): JSX.Element {
  const { id, label, groups, context, all, colours, current } = props;
  const { trans, names } = context.wording;
  return (
    <List
      id={id}
      label={label}
      items={groups}
      few={firstRows(groups, ROWS, current)}
      trans={trans}
      draw={group =>
        group.id === current ? (
          <OwnRow
            key={group.id}
            group={group}
            name={names.get(group.id) ?? shortName(group.name)}
            colour={colours.get(group.id) ?? 0}
            wording={context.wording}
          />
        ) : (
          <Row
            key={group.id}
            group={group}
            name={names.get(group.id) ?? shortName(group.name)}
            colour={colours.get(group.id) ?? 0}
            background={showsBackground(group, all)}
            context={context}
          />
        )
      }
    />
  );
}

interface IOtherProgramsProps {
  status: IStatus;
  shares: ReadonlyMap<string, readonly IGroupShare[]>;
  wording: IWording;
}

/** GPU memory of programs that gpushare does not manage. */
export function OtherPrograms(props: IOtherProgramsProps): JSX.Element | null {
  const { status, shares, wording } = props;
  const { trans, units } = wording;
  const gpus = status.gpus.filter(
    gpu => !isResidue(gpu, shares.get(gpu.uuid) ?? NO_SHARES)
  );
  if (gpus.length === 0) {
    return null;
  }
  return (
    <section
      className="jp-GpuShare-section"
      aria-labelledby="jp-GpuShare-foreign"
    >
      <h3 id="jp-GpuShare-foreign">{trans.__('Other programs')}</h3>
      <ul role="list">
        {gpus.map(gpu => (
          <li key={gpu.uuid} className="jp-GpuShare-row">
            <span className="jp-GpuShare-key" data-part="foreign" />
            <div className="jp-GpuShare-name">
              <span>{trans.__('not managed by gpushare')}</span>
            </div>
            <div className="jp-GpuShare-figure">
              {formatBytes(gpu.foreign, units)}
            </div>
            <div className="jp-GpuShare-detail">
              {status.gpus.length > 1
                ? trans.__('on GPU %1; cannot be evicted', gpu.index)
                : trans.__('cannot be evicted')}
            </div>
          </li>
        ))}
      </ul>
      <p className="jp-GpuShare-detail">
        {trans.__(
          'Kernels started by papermill, nbconvert, VS Code or jupyter console can share the GPU too. Create a kernelspec for them with: gpushare kernelspec add shared'
        )}
      </p>
    </section>
  );
}

interface INotSharingProps {
  unshared: IUnshared[];
  trans: ITranslation;
}

/** Kernels of this server that do not share the GPU, and what to do about it. */
export function NotSharing({ unshared, trans }: INotSharingProps): JSX.Element {
  const short = shortestNames(
    new Set(
      unshared.flatMap(({ sessions }) => sessions.map(({ path }) => path))
    )
  );
  return (
    <List
      id="unshared"
      label={trans.__('Not sharing')}
      items={unshared}
      few={unshared.slice(0, ROWS)}
      trans={trans}
      draw={kernel => {
        const name =
          listNames(
            kernel.sessions.map(session =>
              session.type === 'console'
                ? printable(session.name)
                : (short.get(session.path) ?? printable(session.name))
            ),
            trans
          ) || trans.__('kernel %1', kernel.kernel_id.slice(0, 8));
        const { title, text } = unsharedText(name, kernel, trans);
        return (
          <li key={kernel.kernel_id} className="jp-GpuShare-row">
            <span className="jp-GpuShare-swatch" data-empty="true" />
            <div className="jp-GpuShare-name">
              <span title={title}>
                <Name text={name} end={5} />
              </span>
            </div>
            <div className="jp-GpuShare-detail">{text}</div>
          </li>
        );
      }}
    />
  );
}
